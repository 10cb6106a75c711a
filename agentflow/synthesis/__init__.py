"""Synthesis: question-answer pairs that need the path they were written from, and are grounded in it.

`synthesize(config_path=…)` runs all of it; `SynthesisPipeline` runs it from settings made in code. `write_questions` and
`write_files` are its stages after growing. See docs/synthesis.md.
"""

from typing import TYPE_CHECKING

from agentflow.synthesis._config import (
    DifficultySettings,
    SynthesisConfig,
    load_config,
    load_synthesis_config,
)
from agentflow.synthesis._files import (
    PAIRS,
    REPORT,
    SURPLUS,
    TASKS,
    TRAJECTORIES,
    TREES,
    QuestionIndex,
    TreeRecord,
    pair_record,
    start_of,
    write_files,
)
from agentflow.synthesis._questions import write_questions
from agentflow.synthesis._report import Report
from agentflow.synthesis._seed_result import SeedResult
from agentflow.synthesis._seeds import load_seeds
from agentflow.synthesis._task_pairs import TaskPair, pair_of_task
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.synthesis._audit import (
        AUDIT,
        AuditedQuestion,
        AuditedStep,
        AuditRun,
        AuditVerdict,
        audit_settings,
        load_questions,
    )
    from agentflow.synthesis.pipeline import SynthesisPipeline, asynthesize, synthesize

__all__ = [
    "AUDIT",
    "PAIRS",
    "REPORT",
    "SURPLUS",
    "TASKS",
    "TRAJECTORIES",
    "TREES",
    "AuditRun",
    "AuditVerdict",
    "AuditedQuestion",
    "AuditedStep",
    "DifficultySettings",
    "QuestionIndex",
    "Report",
    "SeedResult",
    "SynthesisConfig",
    "SynthesisPipeline",
    "TaskPair",
    "TreeRecord",
    "asynthesize",
    "audit_settings",
    "load_config",
    "load_questions",
    "load_seeds",
    "load_synthesis_config",
    "pair_of_task",
    "pair_record",
    "start_of",
    "synthesize",
    "write_files",
    "write_questions",
]

# The stages alone need no servers.
__getattr__ = lazy_exports(
    __name__,
    {
        "._audit": [
            "AUDIT",
            "AuditRun",
            "AuditVerdict",
            "AuditedQuestion",
            "AuditedStep",
            "audit_settings",
            "load_questions",
        ],
        ".pipeline": ["SynthesisPipeline", "asynthesize", "synthesize"],
    },
)
