"""Judges: the rewards of ended episodes. A failed judge is a failed reward, never a reward of 0. See docs/judges.md."""

from agentflow.tuner.judges._judged import (
    SANDBOX,
    EpisodeJudge,
    Judged,
    as_outcome,
    call_any,
    checked_outcome,
    takes_sandbox,
    transcript_text,
)
from agentflow.tuner.judges._judges import (
    DEFAULT,
    EnvironmentJudgeSettings,
    JudgeSpec,
    make_judge,
)
from agentflow.tuner.judges._rubrics import RubricCriterion, RubricJudge, RubricSettings

__all__ = [
    "DEFAULT",
    "SANDBOX",
    "EnvironmentJudgeSettings",
    "EpisodeJudge",
    "JudgeSpec",
    "Judged",
    "RubricCriterion",
    "RubricJudge",
    "RubricSettings",
    "as_outcome",
    "call_any",
    "checked_outcome",
    "make_judge",
    "takes_sandbox",
    "transcript_text",
]
