"""Judges by name: in the workflow, a metric, a function, the environment service, rubrics, one for each source."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeGuard

from msgspec import structs
from pydantic import Field

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError, RunStopped, error_line
from agentflow.gateway import EpisodeOutcome
from agentflow.models import Model
from agentflow.readers import REASONING_GYM, EnvironmentFailure, EnvironmentService, ascore_reasoning_gym
from agentflow.scoring import BY_SOURCE, Metric, make_metric, metric_of_source, needs_judge
from agentflow.settings import EndpointUrl, Section, import_object
from agentflow.telemetry import get_logger
from agentflow.trace import Task
from agentflow.tuner.judges._judged import (
    SANDBOX,
    EpisodeJudge,
    Judged,
    as_outcome,
    call_any,
    merged,
    takes_sandbox,
)
from agentflow.tuner.judges._rubrics import RubricJudge, RubricSettings

logger = get_logger(__name__)

WORKFLOW: Final = "workflow"
"""Judge that takes the reward of the workflow."""
DEFAULT: Final = "default"
"""Judge of the sources without one of their own."""
_SECTIONS: Final = ("environment", "rubric")
_WITHOUT_REFERENCES: Final = frozenset({"game24"})
"""Rules that can take what they need from the task."""

JudgeSpec: TypeAlias = "str | Callable[..., object] | Mapping[str, Any] | EpisodeJudge | None"
"""A judge by name, a function, a section of settings, or a judge for each `source` of tasks."""


class EnvironmentJudgeSettings(Section):
    """Judge that asks an environment service. See docs/judges.md."""

    url: EndpointUrl
    """Address of the service."""
    timeout: float = Field(default=300.0, gt=0)
    """Time limit of a request, in seconds."""
    tries: int = Field(default=3, ge=1)
    """Maximum number of requests for an operation."""
    release: bool = True
    """Release the instance after its evaluation."""


def make_judge(
    spec: JudgeSpec = None, *, options: Mapping[str, Any] | None = None, model: Model | None = None
) -> EpisodeJudge:
    """Return a judge. See docs/judges.md.

    :param spec: `None`: the reward of the workflow, or else the usual metric of the task's source; the name of a metric;
        `workflow`; `reasoning_gym`; `module:function`; a function of `(answer, task)` or of one `Judged`;
        `{"environment": {…}}`; `{"rubric": {…}}`; or any of these for each `source` of tasks.
    :param options: options of a named metric.
    :param model: model of metrics and rubrics that need one, open.
    :raises ConfigurationError: one line, if it is unknown, or a model is missing.

    Example::

        judge = make_judge({"gsm8k": "math", "maze": lambda answer, task: 2.5})
        outcome = await judge.judge(Judged(task=task, outcome=EpisodeOutcome(answer="42")))
    """
    if options and not isinstance(spec, str):
        raise ConfigurationError("reward: options belong to a metric with a name; name one")
    if isinstance(spec, str):
        return _named(spec, options, model)
    if spec is None:
        return _Guarded(_BySource({DEFAULT: _MetricJudge(make_metric("exact_match"))}))
    if is_mapping(spec):
        return _of_mapping(spec, model)
    if isinstance(spec, _Guarded):
        return spec
    if _is_judge(spec):
        return _Guarded(spec)
    if callable(spec):
        return _Guarded(_FunctionJudge(spec))
    raise ConfigurationError(f"reward: {spec!r} is no judge; write a metric, module:function, or a section")


def _is_judge(value: object) -> TypeGuard[EpisodeJudge]:
    return all(hasattr(value, member) for member in ("name", "needs_sandbox", "prepare", "judge"))


def _named(name: str, options: Mapping[str, Any] | None, model: Model | None) -> EpisodeJudge:
    if name == BY_SOURCE:
        # The temperature of judges comes along with the sources.
        judging = {key: value for key, value in (options or {}).items() if key == "temperature"}
        given = {
            source: _named(str(one), judging if needs_judge(str(one)) else None, model)
            for source, one in (options or {}).items()
            if source not in judging
        }
        return _Guarded(_BySource({DEFAULT: _MetricJudge(make_metric("exact_match")), **given}))
    if name in (WORKFLOW, REASONING_GYM):
        if options:
            raise ConfigurationError(f"reward: {name} has no options; leave them out")
        return _Guarded(_WorkflowJudge() if name == WORKFLOW else _ReasoningGymJudge())
    if ":" in name:
        found = import_object(name)
        if isinstance(found, type) or not callable(found):
            raise ConfigurationError(f"reward: {name} is not a function; write module:function")
        if options:
            raise ConfigurationError(f"reward: {name} is a function, which has no options; leave them out")
        return _Guarded(_FunctionJudge(found, name))
    metric = make_metric(name, options=options, judge=model)
    return _Guarded(_MetricJudge(metric, by_rule=not needs_judge(name, options)))


def _of_mapping(spec: Mapping[str, Any], model: Model | None) -> EpisodeJudge:
    if not spec:
        raise ConfigurationError("reward: is empty; write a judge for each source of tasks")
    section = next(iter(spec))
    if len(spec) == 1 and section in _SECTIONS and is_mapping(spec[section]):
        if section == "environment":
            return _Guarded(_EnvironmentJudge(EnvironmentJudgeSettings(**spec[section])))
        if model is None:
            raise ConfigurationError("reward: rubric: a model grades; set the judge's model")
        return _Guarded(RubricJudge(RubricSettings(**spec[section]), model))
    return _Guarded(_BySource({source: make_judge(one, model=model) for source, one in spec.items()}))


class _Guarded:
    """Judge whose problems are failures of the reward, one line each."""

    def __init__(self, judge: EpisodeJudge) -> None:
        self._judge = judge

    @property
    def name(self) -> str:
        return self._judge.name

    @property
    def needs_sandbox(self) -> bool:
        return self._judge.needs_sandbox

    async def prepare(self, tasks: Sequence[Task]) -> None:
        await self._judge.prepare(tasks)

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.outcome.failure:
            return judged.outcome
        try:
            outcome = merged(judged.outcome, as_outcome(await self._judge.judge(judged)))
            if outcome.reward is None and not outcome.failure:
                return structs.replace(outcome, failure=f"{self.name}: gave no reward")
            return outcome
        except (RunStopped, ConfigurationError):
            raise
        except TypeError as error:
            return self._failed(judged, str(error))
        except Exception as error:  # boundary: a judge may be user code; a failed one is never 0
            return self._failed(judged, error_line(error))

    def _failed(self, judged: Judged, problem: str) -> EpisodeOutcome:
        line = f"{self.name}: {' '.join(problem.split())[:500]}"
        logger.warning("reward failed", task=judged.task.id, episode=judged.episode, problem=line)
        return structs.replace(judged.outcome, reward=None, failure=line)


class _Judge:
    """Base of judges that need neither a sandbox nor a preparation."""

    needs_sandbox = False

    async def prepare(self, tasks: Sequence[Task]) -> None:
        return None


class _WorkflowJudge(_Judge):
    name = WORKFLOW

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.reward is None:
            raise TypeError("the workflow returned no reward; return a number, or name a judge")
        return judged.outcome


class _MetricJudge(_Judge):
    """Metric of answers. A reward that the workflow returned stands."""

    def __init__(self, metric: Metric, *, by_rule: bool = True) -> None:
        self.name = metric.name
        self._metric = metric
        self._by_rule = by_rule and metric.name not in _WITHOUT_REFERENCES

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.reward is not None:
            return judged.outcome
        if self._by_rule and not judged.task.references:
            raise TypeError(
                "the task has no reference answer; return a reward from the workflow, or name a judge"
            )
        scored = await self._metric.score(judged.answer, judged.task)
        return as_outcome(scored, judged.answer)


class _ReasoningGymJudge(_Judge):
    name = REASONING_GYM

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.reward is not None:
            return judged.outcome
        score = await ascore_reasoning_gym(judged.answer, judged.task)
        return EpisodeOutcome(reward=score, answer=judged.answer, success=score >= 1.0)


class _FunctionJudge(_Judge):
    """Function of an answer and its task, or of all that is known of the episode."""

    def __init__(self, function: Callable[..., object], name: str = "") -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.needs_sandbox = takes_sandbox(function)
        self._function = function
        self._whole = _takes_judged(function)

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.reward is not None and not self._whole:
            return judged.outcome
        given = (judged,) if self._whole else (judged.answer, judged.task)
        function = self._function
        if self.needs_sandbox:
            function = partial(function, **{SANDBOX: judged.sandbox})
        result = await call_any(function, *given)
        if isinstance(result, str):
            raise TypeError(f"returned the text {result[:60]!r}; return a number, or rewards by agent")
        return as_outcome(result, judged.outcome.answer)


def _takes_judged(function: Callable[..., object]) -> bool:
    """Return whether a function takes one argument, besides a sandbox."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        len(
            [
                one
                for one in parameters
                if one.kind in kinds and one.name != SANDBOX and one.default is one.empty
            ]
        )
        == 1
    )


class _EnvironmentJudge(_Judge):
    """Evaluation by an environment service; the answer of the episode is the id of its instance."""

    name = "environment"

    def __init__(self, settings: EnvironmentJudgeSettings) -> None:
        self._settings = settings

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        if judged.reward is not None:
            return judged.outcome
        instance = judged.outcome.answer
        if not instance:
            raise TypeError("the workflow returned no instance; return its id, and open it with keep=True")
        own = self._settings
        async with EnvironmentService(own.url, timeout=own.timeout, tries=own.tries) as service:
            reward = await service.evaluate(instance)
            if own.release:
                try:
                    await service.release(instance)
                except EnvironmentFailure as error:
                    # Its reward is known; the service ends forgotten instances by itself.
                    logger.warning("instance not released", instance=instance, problem=str(error))
        return EpisodeOutcome(reward=reward)


class _BySource:
    """A judge for each source of tasks, or else its usual metric."""

    name = BY_SOURCE

    def __init__(self, judges: Mapping[str, EpisodeJudge]) -> None:
        self._judges = dict(judges)
        self._usual: dict[str, EpisodeJudge] = {}
        self.needs_sandbox = any(judge.needs_sandbox for judge in judges.values())

    async def prepare(self, tasks: Sequence[Task]) -> None:
        by_judge: dict[int, tuple[EpisodeJudge, list[Task]]] = {}
        for task in tasks:
            judge = self._of(task)
            by_judge.setdefault(id(judge), (judge, []))[1].append(task)
        for judge, own in by_judge.values():
            await judge.prepare(own)

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        return await self._of(judged.task).judge(judged)

    def _of(self, task: Task) -> EpisodeJudge:
        source = task.metadata.get("source")
        judge = self._judges.get(str(source)) or self._usual_of(source) or self._judges.get(DEFAULT)
        if judge is None:
            known = ", ".join(self._judges)
            raise ConfigurationError(
                f"reward: task {task.id} has source {source!r}, and there are judges for {known}; add it, or {DEFAULT}"
            )
        return judge

    def _usual_of(self, source: object) -> EpisodeJudge | None:
        name = REASONING_GYM if source == REASONING_GYM else metric_of_source(source)
        if name is None:
            return None
        if name not in self._usual:
            judge = _ReasoningGymJudge() if name == REASONING_GYM else _MetricJudge(make_metric(name))
            self._usual[name] = judge
        return self._usual[name]
