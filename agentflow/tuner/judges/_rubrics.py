"""Rubrics: criteria that a model drafts once for a set of tasks, and grades by them with reasons."""

import re
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Struct
from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.gateway import EpisodeOutcome
from agentflow.models import Call, Message, Model, Sampling, TextPart
from agentflow.readers import KeptReplies, cache_folder
from agentflow.settings import Section
from agentflow.text import PromptFiles
from agentflow.trace import Task, digest
from agentflow.tuner.judges._judged import Judged, transcript_text

_PROMPTS: Final = PromptFiles(Path(__file__).parent / "prompts")
_MARK: Final = re.compile(r"<(?=/?(?:task|references|transcript|answer)\b)", re.IGNORECASE)
_BEST: Final = 4
"""Best grade of a criterion."""
_LONGEST: Final = 20_000
"""Maximum length of a text that a model sees."""


class RubricCriterion(Section):
    """Criterion of a rubric."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Short name."""
    description: Annotated[str, Field(min_length=1)]
    """Meaning of a full score and of a score of zero."""
    weight: float = Field(default=1.0, gt=0)
    """Weight in the reward."""


class RubricSettings(Section):
    """Judge that grades by a rubric. See docs/judges.md."""

    criteria: list[RubricCriterion] = Field(default_factory=list[RubricCriterion])
    """Criteria; empty: a model drafts them once for the tasks of the run."""
    count: int = Field(default=4, ge=1, le=20)
    """Number of criteria to draft."""
    examples: int = Field(default=8, ge=1, le=64)
    """Number of tasks shown for drafting."""
    guidance: str = ""
    """Instructions for drafting."""
    transcript: bool = False
    """Show the grader the whole conversation, not only the answer."""
    cache: str | None = None
    """Folder in which criteria and grades are kept; `None`: the user's cache."""


class _DraftedCriterion(Struct, frozen=True):
    name: str
    description: str
    weight: float


class _Draft(Struct, frozen=True):
    criteria: list[_DraftedCriterion]


class _Grade(Struct, frozen=True):
    name: str
    reason: str
    grade: int


class _Grades(Struct, frozen=True):
    grades: list[_Grade]


def _objects(name: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object with a list of objects."""
    item: dict[str, Any] = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {name: {"type": "array", "items": item}},
        "required": [name],
        "additionalProperties": False,
    }


_DRAFT: Final = _objects(
    "criteria",
    {"name": {"type": "string"}, "description": {"type": "string"}, "weight": {"type": "number"}},
)
_GRADES: Final = _objects(
    "grades",
    {
        "name": {"type": "string"},
        "reason": {"type": "string"},
        "grade": {"type": "integer", "minimum": 0, "maximum": _BEST},
    },
)


class RubricJudge:
    """Judge whose reward is the weighted mean of grades, from 0 to 1. See docs/judges.md."""

    name = "rubric"
    """Its name."""
    needs_sandbox = False
    """It sees the answer alone."""

    def __init__(self, settings: RubricSettings, model: Model) -> None:
        """Configure it.

        :param model: model that drafts and grades, open.
        :raises ConfigurationError: one line, if what is kept can't be read.
        """
        self.criteria = tuple(settings.criteria)
        """Criteria; empty until `prepare`, unless they were given."""
        self._settings = settings
        self._replies = KeptReplies(model, cache_folder(settings.cache) / "rubrics.jsonl")

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Draft the criteria, unless they were given or drafted for these tasks before.

        :raises ConfigurationError: one line, if the model gave none.
        :raises RunStopped: if the model can't be used.
        """
        if self.criteria or not tasks:
            return
        own = self._settings
        shown = sorted(tasks, key=lambda task: digest(task.id))[: own.examples]
        texts = [f"<task>\n{_safe(_shown(task))}\n</task>" for task in shown]
        call = Call(
            role="judge",
            messages=_messages(
                "rubric_criteria", guidance=own.guidance, tasks="\n\n".join(texts), count=str(own.count)
            ),
            reply=_Draft,
            schema=_DRAFT,
            sampling=Sampling(temperature=0.0),
        )
        drafted, failure = await self._replies.ask(call, sorted(task.id for task in tasks))
        if drafted is None:
            raise ConfigurationError(
                f"reward: rubric: no criteria were drafted: {failure.message if failure else ''}"
            )
        named = {
            one.name.strip(): one for one in drafted.criteria if one.name.strip() and one.description.strip()
        }
        if not named:
            raise ConfigurationError("reward: rubric: the model drafted no criteria; write them as criteria")
        self.criteria = tuple(
            RubricCriterion(
                name=name[:100], description=one.description, weight=min(max(one.weight, 1.0), 10.0)
            )
            for name, one in list(named.items())[: own.count]
        )

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        """Grade an answer; the metrics of the outcome are the grades, from 0 to 1.

        :raises ValueError: one line, if the grades are missing or unusable.
        """
        if judged.reward is not None:
            return judged.outcome
        if not self.criteria:
            raise ValueError("it has no criteria; prepare it with the tasks of the run")
        shown = transcript_text(judged.transcript(), _LONGEST) if self._settings.transcript else ""
        listed = [f"- {one.name}: {one.description}" for one in self.criteria]
        call = Call(
            role="judge",
            messages=_messages(
                "rubric_grades",
                task=_safe(judged.task.question),
                references=_safe("\n".join(judged.task.references)),
                transcript=_safe(shown),
                answer=_safe(judged.answer) or "(empty)",
                criteria="\n".join(listed),
            ),
            reply=_Grades,
            schema=_GRADES,
            sampling=Sampling(temperature=0.0),
        )
        given, failure = await self._replies.ask(call)
        if given is None:
            raise ValueError(f"no grades: {failure.message if failure else 'no answer'}")
        grades = {grade.name.strip(): grade for grade in given.grades}
        missing = [one.name for one in self.criteria if one.name not in grades]
        if missing or not all(0 <= grade.grade <= _BEST for grade in given.grades):
            problem = f"no grade for {missing[0]}" if missing else f"a grade is not from 0 to {_BEST}"
            raise ValueError(problem)
        parts = {one.name: grades[one.name].grade / _BEST for one in self.criteria}
        total = fsum(one.weight for one in self.criteria)
        reward = fsum(one.weight * parts[one.name] for one in self.criteria) / total
        metrics = {f"rubric/{name}": part for name, part in parts.items()}
        return EpisodeOutcome(reward=reward, answer=judged.answer, metrics=metrics)


def _shown(task: Task) -> str:
    references = "\n".join(f"Reference answer: {reference}" for reference in task.references)
    return f"{task.question}\n{references}".strip()


def _safe(text: str) -> str:
    """Return a text that can't close the tags around it; the middle of a long one is left out."""
    text = _MARK.sub("‹", text.strip())
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n[…]\n{text[-_LONGEST // 2 :]}"


def _messages(name: str, **values: str) -> tuple[Message, ...]:
    return (
        Message("system", (TextPart(_PROMPTS.fill(name, "system")),)),
        Message("user", (TextPart(_PROMPTS.fill(name, "ask", **values)),)),
    )
