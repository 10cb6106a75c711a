"""Filters of tasks: near-duplicates, a window of pass rates, and functions of the user."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

import anyio.to_thread
from msgspec import structs
from pydantic import Field, model_validator

from agentflow._typeguards import is_list, is_mapping
from agentflow.actors import together
from agentflow.errors import ConfigurationError, error_line
from agentflow.models import Call, Message, Sampling, TextPart
from agentflow.readers._replies import KeptReplies
from agentflow.readers._settings import REASONING_GYM, REASONING_GYM_METRIC
from agentflow.readers._traces import stored_rates
from agentflow.scoring import BY_SOURCE, make_metric
from agentflow.settings import Section, import_object, nearest
from agentflow.synthesis import QuestionIndex
from agentflow.trace import Task
from agentflow.values import TextValue, Value, ValueKind, parse_value

_RIGHT: Final = 0.99
"""Score from which an attempt counts as right."""

FilterSpec: TypeAlias = "str | Mapping[str, Any] | Callable[..., object] | TaskFilter"
"""A filter by name, with options, as a function, or as an object."""
ModelOpener: TypeAlias = Callable[[str], Awaitable[KeptReplies]]
"""Opens the model of filters; the argument is the setting that needs it."""


class TaskFilter(Protocol):
    """Filter of tasks. It sees the tasks in order, in batches. See docs/readers.md."""

    @property
    def name(self) -> str:
        """Name in the counts."""
        ...

    async def check(self, tasks: Sequence[Task]) -> Sequence[Task | str]:
        """Return each task, perhaps with more metadata, or the reason to leave it out.

        :raises ConfigurationError: one line, if it can't decide.
        :raises RunStopped: if a model that it needs can't be used.
        """
        ...


class NearDuplicateSettings(Section):
    """Filter of near-duplicates: equal questions, and similar ones with the same answer."""

    similarity: float = Field(default=0.85, gt=0, le=1)
    """Similarity of words from which two questions with the same answer are duplicates."""


class PassRateSettings(Section):
    """Filter of tasks by the share of right attempts."""

    low: float = Field(default=0.1, ge=0, le=1)
    """Lowest share to keep."""
    high: float = Field(default=0.9, ge=0, le=1)
    """Highest share to keep."""
    results: str | None = None
    """Output folder of a rollout or a training, or `results.jsonl`; `None`: the `pass_rate` of the task, or attempts."""
    attempts: int = Field(default=0, ge=0, le=256)
    """Attempts of the model at a task without a known rate; 0: such a task is left out."""
    metric: str = BY_SOURCE
    """Metric of the attempts."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of the attempts."""

    @model_validator(mode="after")
    def _sensible(self) -> "PassRateSettings":
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


async def make_filter(spec: FilterSpec, open_model: ModelOpener) -> TaskFilter:
    """Return a filter.

    :param open_model: opens the model that a filter needs.
    :raises ConfigurationError: one line, if it is unknown, or its options can't be used.
    """
    if isinstance(spec, str):
        return await _named(spec, {}, open_model)
    if is_mapping(spec):
        if len(spec) != 1:
            raise ConfigurationError("filters: write one name with its options for each filter")
        ((name, options),) = spec.items()
        return await _named(name, options, open_model)
    if _is_filter(spec):
        return spec
    if not callable(spec):
        raise ConfigurationError(
            f"filters: {spec!r} is no filter; write a name, a function, or module:function"
        )
    return FunctionFilter(spec)


def _is_filter(value: object) -> TypeGuard[TaskFilter]:
    return hasattr(value, "check") and hasattr(value, "name")


async def _named(name: str, value: object, open_model: ModelOpener) -> TaskFilter:
    options: Mapping[str, Any] = value if is_mapping(value) else {}
    match name:
        case "near_duplicates":
            similarity = {"similarity": value} if isinstance(value, int | float) else {}
            return NearDuplicates(NearDuplicateSettings(**options, **similarity))
        case "pass_rate":
            window = {"low": value[0], "high": value[1]} if is_list(value) and len(value) == 2 else {}
            settings = PassRateSettings(**options, **window)
            model = await open_model("model") if settings.attempts else None
            return PassRate(settings, model)
        case _ if ":" in name:
            function = import_object(name)
            if not callable(function):
                raise ConfigurationError(f"filters: {name} is not a function; write module:function")
            return FunctionFilter(function, name, options)
        case _:
            hint = nearest(name, ["near_duplicates", "pass_rate"])
            raise ConfigurationError(f"filters: there is no filter {name}{hint}; or write module:function")


class NearDuplicates:
    """Filter of near-duplicates, by MinHash sketches of words. The first of each kind is kept."""

    name = "near_duplicates"
    """Its name."""

    def __init__(self, settings: NearDuplicateSettings | None = None) -> None:
        self._index = QuestionIndex((settings or NearDuplicateSettings()).similarity)

    async def check(self, tasks: Sequence[Task]) -> Sequence[Task | str]:
        """Return each task that is like none before it."""
        return [self._check(task) for task in tasks]

    def _check(self, task: Task) -> Task | str:
        answer = answer_value(task)
        if self._index.before(task.question, answer) is not None:
            return "near-duplicate"
        self._index.add(task.question, answer, task.id)
        return task


def answer_value(task: Task) -> Value:
    """Return the first reference answer as a typed value."""
    reference = task.references[0] if task.references else ""
    return parse_value(reference, ValueKind.NUMBER) or TextValue(reference)


class PassRate:
    """Filter by the share of right attempts: stored with the task, in results of a rollout, or made by a model."""

    name = "pass_rate"
    """Its name."""

    def __init__(self, settings: PassRateSettings, model: KeptReplies | None = None) -> None:
        """:param model: makes attempts, if the settings ask for any.
        :raises ConfigurationError: one line, if they can't be read.
        """
        self._settings = settings
        self._model = model
        metric_options = {REASONING_GYM: REASONING_GYM_METRIC} if settings.metric == BY_SOURCE else None
        self._metric = make_metric(settings.metric, options=metric_options)
        self._stored_rates: dict[str, float] = {}
        if settings.results is not None:
            self._stored_rates = stored_rates(Path(settings.results))

    async def check(self, tasks: Sequence[Task]) -> Sequence[Task | str]:
        """Return each task whose share is in the window, with its `pass_rate`."""

        async def rate(task: Task) -> float | str | None:
            pass_rate: object = self._stored_rates.get(task.id, task.metadata.get("pass_rate"))
            if isinstance(pass_rate, int | float) and not isinstance(pass_rate, bool):
                return float(pass_rate)
            return None if self._model is None else await self._measure(self._model, task)

        rates = await together([partial(rate, task) for task in tasks])
        return [self._decide(task, rate) for task, rate in zip(tasks, rates, strict=True)]

    def _decide(self, task: Task, rate: float | str | None) -> Task | str:
        if rate is None:
            return "pass rate unknown"
        if isinstance(rate, str):
            return rate
        if rate < self._settings.low:
            return "too hard"
        if rate > self._settings.high:
            return "too easy"
        return structs.replace(task, metadata={**task.metadata, "pass_rate": round(rate, 4)})

    async def _measure(self, model: KeptReplies, task: Task) -> float | str:
        async def attempt(number: int) -> float | None:
            answer = await attempt_answer(model, task.question, number, self._settings.temperature)
            if answer is None:
                return None
            scored = await self._metric.score(answer, task)
            return None if scored.failure is not None else scored.score

        if not task.references:
            return "no reference answer"
        made = await together([partial(attempt, number) for number in range(self._settings.attempts)])
        scores = [score for score in made if score is not None]
        # Failed calls say nothing about the task.
        return sum(score >= _RIGHT for score in scores) / len(scores) if scores else "attempts failed"


async def attempt_answer(model: KeptReplies, question: str, number: int, temperature: float) -> str | None:
    """Return a model's answer to a question alone; `None` if the call failed.

    :param number: number of the attempt, its sampling seed.
    """
    message = Message(
        "user", (TextPart(f"{question}\n\nEnd with the answer alone, in the form <answer>…</answer>."),)
    )
    sampling = Sampling(temperature=temperature, seed=number)
    answer, _ = await model.ask(Call(role="agent", messages=(message,), reply=str, sampling=sampling), number)
    return answer


class FunctionFilter:
    """Function of the user: `True` keeps a task, `False` or a reason leaves it out."""

    def __init__(
        self, function: Callable[..., object], name: str = "", options: Mapping[str, Any] | None = None
    ) -> None:
        """:param options: further arguments by name."""
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        """Its name."""
        self._function = function
        self._options = dict(options or {})

    async def check(self, tasks: Sequence[Task]) -> Sequence[Task | str]:
        """Call the function for each task.

        :raises ConfigurationError: one line, if it raises or returns anything else.
        """
        return [await self._check(task) for task in tasks]

    async def _check(self, task: Task) -> Task | str:
        try:
            if inspect.iscoroutinefunction(self._function):
                result: object = await self._function(task, **self._options)
            else:
                result = await anyio.to_thread.run_sync(partial(self._function, task, **self._options))
        except Exception as error:  # boundary: a user's code may raise anything
            raise ConfigurationError(
                f"filters: {self.name}: task {task.id}: raised {error_line(error)}"
            ) from error
        if result is True:
            return task
        if result is False or (isinstance(result, str) and result):
            return result or self.name
        raise ConfigurationError(
            f"filters: {self.name}: task {task.id}: returned {result!r}; return True, False, or a reason to leave it out"
        )
