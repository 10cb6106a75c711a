"""Metrics: rules on texts, similarity of vectors, documents, custom functions."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from math import sqrt
from typing import Any, Final, cast, get_type_hints

from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from agentflow.errors import ErrorKind, ModelFailure
from agentflow.models import Call, Model, Sampling
from agentflow.scoring._answers import marked_answer
from agentflow.scoring._documents import document_score, is_unanswerable
from agentflow.scoring._judge import ask, schema_of
from agentflow.scoring._prompts import messages
from agentflow.scoring._scored import Embed, Scored
from agentflow.trajectory import Failure, Task, Usage

Rule = Callable[..., float]
"""Function of a prediction and its references; keyword parameters are its options."""

_EXTRACTED: Final = schema_of(answer="string")
_KEEPS_PROSE: Final = frozenset({"contains_answer", "game24", "multiple_choice", "math"})
"""Rules that extract the answer themselves."""


class RuleMetric:
    """Metric of a rule with its options.

    If a prediction marks its answer (`<answer>`, a box, `final answer:`), only that counts. An option that is not set is
    taken from the task: `question`, or the metadata under that name.
    """

    def __init__(self, name: str, rule: Rule, options: Mapping[str, Any]) -> None:
        self._name = name
        self._rule = rule
        self._options = options

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    async def score(self, prediction: str, task: Task) -> Scored:
        """Apply the rule."""
        try:
            options = self._of_task(task)
        except ValueError as error:
            return _unjudged(f"the task's {error}")
        if not task.references and "numbers" not in options:
            return _unjudged("the task has no right answer to compare with")
        marked = None if self._name in _KEEPS_PROSE else marked_answer(prediction)
        return Scored(self._rule(prediction if marked is None else marked, task.references, **options))

    def _of_task(self, task: Task) -> dict[str, Any]:
        known = {"question": task.question, **task.metadata}
        given = {name: known[name] for name in _adapters(self._rule) if known.get(name) is not None}
        return typed_options(self._rule, given) | dict(self._options)


def typed_options(rule: Rule, options: Mapping[str, object]) -> dict[str, Any]:
    """Convert the options to the types of the rule's parameters.

    :raises ValueError: one line, if an option has another type.
    """
    typed: dict[str, Any] = {}
    for name, value in options.items():
        try:
            typed[name] = _adapters(rule)[name].validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{name}: {error.errors()[0]['msg']}") from None
    return typed


@cache
def _adapters(rule: Rule) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(rule)
    parameters = inspect.signature(rule).parameters.values()
    return {each.name: TypeAdapter(hints[each.name]) for each in parameters if each.kind is each.KEYWORD_ONLY}


class SimilarityMetric:
    """Metric of similarity: cosine of two texts' vectors, the best over references."""

    name = "similarity"
    """Its name."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed

    async def score(self, prediction: str, task: Task) -> Scored:
        """Return the similarity from 0 (unrelated) to 1 (equal)."""
        if not task.references:
            return _unjudged("the task has no right answer to compare with")
        marked = marked_answer(prediction)
        try:
            said, *right = await self._embed([prediction if marked is None else marked, *task.references])
        except ModelFailure as failure:
            return Scored(0.0, failure=Failure(failure.kind, str(failure)))
        return Scored(max(0.0, *(_cosine(said, each) for each in right)))


class Extract(Struct, frozen=True):
    """Short answer extracted by a model."""

    answer: str
    """The short answer."""


class DocumentMetric:
    """Accuracy or F1 of MMLongBench-Doc. A model, if given, first extracts the short answer from a long one.

    The F1 weighs tasks: those without an answer in reference and prediction do not count. Its weighted mean is the F1.
    """

    def __init__(self, name: str, model: Model | None, *, f1: bool) -> None:
        self._name = name
        self._model = model
        self._f1 = f1

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    async def score(self, prediction: str, task: Task) -> Scored:
        """Score the answer by the rules of the benchmark."""
        answer, usage = await self._short(prediction, task)
        if isinstance(answer, Failure):
            return Scored(0.0, failure=answer, usage=usage)
        try:
            options = typed_options(document_score, {"answer_format": task.metadata.get("answer_format")})
        except ValueError as error:
            return _unjudged(f"the task's {error}")
        score = document_score(answer, task.references, **options)
        if not self._f1:
            return Scored(score, usage=usage)
        answered = bool(answer.strip()) and not is_unanswerable(answer)
        answerable = not any(map(is_unanswerable, task.references))
        return Scored(score if answerable else 0.0, usage=usage, weight=(answered + answerable) / 2)

    async def _short(self, prediction: str, task: Task) -> tuple[str | Failure, Usage]:
        marked = marked_answer(prediction)
        if self._model is None or marked is not None:
            return prediction if marked is None else marked, Usage()
        asked = messages("judge_extraction", question=task.question, answer=prediction)
        sampling = Sampling(temperature=0.0)
        call = Call(role="judge", messages=asked, reply=Extract, schema=_EXTRACTED, sampling=sampling)
        read, usage = await ask(self._model, call)
        return read.answer if isinstance(read, Extract) else cast("Failure", read), usage


class OwnMetric:
    """Custom function of a prediction and its task; it returns a number or a `Scored`, or awaits one."""

    def __init__(self, name: str, function: Callable[[str, Task], object]) -> None:
        self._name = name
        self._function = function

    @property
    def name(self) -> str:
        """`module:function`."""
        return self._name

    async def score(self, prediction: str, task: Task) -> Scored:
        """Call the function; a failure if it raises or returns anything else."""
        try:
            said = self._function(prediction, task)
            if inspect.isawaitable(said):
                said = await cast("Awaitable[object]", said)
        except Exception as error:  # Custom code may raise anything, and one task must not end a run.
            return _unjudged(f"{self._name}: {type(error).__name__}: {error}")
        if isinstance(said, Scored):
            return said
        if isinstance(said, bool | int | float) and 0 <= said <= 1:
            return Scored(float(said))
        return _unjudged(f"{self._name} gave {said!r}, not a number from 0 to 1")


def _unjudged(why: str) -> Scored:
    return Scored(0.0, failure=Failure(ErrorKind.BAD_ARGUMENTS, " ".join(why.split())))


def _cosine(one: object, other: object) -> float:
    mine, theirs = cast("list[float]", one), cast("list[float]", other)
    lengths = sqrt(sum(each * each for each in mine)) * sqrt(sum(each * each for each in theirs))
    return sum(left * right for left, right in zip(mine, theirs, strict=True)) / lengths if lengths else 0.0
