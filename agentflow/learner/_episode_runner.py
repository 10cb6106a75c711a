"""Where episodes are played: tools, models and teams, open as long as a training run lasts."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import Page
from agentflow.learner._config import JUDGE, POLICY
from agentflow.models import OFFLINE, Accounts, Call, Completion, Model, ModelSettings, OpenModel, Sampling
from agentflow.rollout import Assignment, SandboxPool
from agentflow.runs import choose_tools, open_models, open_supervised, sandbox_settings, start_child
from agentflow.sandbox import Sandbox, Tool
from agentflow.scoring import Metric, make_metric, needs_judge
from agentflow.team import EpisodeSettings, Team, model_tools, solve_alone, solve_task
from agentflow.trajectory import Blob, Episode, Task, digest

if TYPE_CHECKING:
    from agentflow.learner._config import EpisodeRules, TrainConfig

__all__ = ["Stage", "open_stage"]

T = TypeVar("T")

AGENT = "agent"
MOST_AHEAD = 16
"""SandboxPool that are made before somebody asks, at most."""
_NO_END = 10**9


class Seeded:
    """The policy as one episode asks it: every call has a seed of its own, that follows from the episode's."""

    def __init__(self, model: Model, role: str) -> None:
        self._model = model
        self._role = role
        self._seed = ""
        self._calls = 0
        self._temperature: float | None = None

    def begin(self, seed: str, temperature: float | None) -> None:
        """Another episode begins."""
        self._seed, self._temperature, self._calls = seed, temperature, 0

    @property
    def name(self) -> str:
        """What it is called."""
        return self._model.name

    @property
    def vision(self) -> bool:
        """It takes pictures."""
        return self._model.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        self._calls += 1
        drawn = int(digest([self._seed, self._role, self._calls]), 16) % 2**31
        sampling = structs.replace(
            call.sampling or Sampling(),
            seed=drawn,
            **({} if self._temperature is None else {"temperature": self._temperature}),
        )
        return await self._model.complete(structs.replace(call, sampling=sampling))


class _Crew:
    """Who works on one episode at a time."""

    def __init__(
        self, models: Mapping[str, OpenModel], policy: frozenset[str], pictures: Mapping[str, bytes]
    ) -> None:
        self.models: dict[str, Model] = {
            role: Seeded(model, role) if role in policy else model for role, model in models.items()
        }
        self._pictures = pictures
        self._own: dict[str, bytes] = {}
        self.team: Team | None = None

    def begin(self, seed: str, temperature: float | None) -> None:
        """Another episode begins."""
        self._own.clear()
        for model in self.models.values():
            if isinstance(model, Seeded):
                model.begin(seed, temperature)

    async def put_blob(self, data: bytes, mime: str) -> Blob:
        """Keep a picture until the episode ends."""
        hash = sha256(data).hexdigest()
        self._own[hash] = data
        return Blob(hash, mime)

    async def blob(self, hash: str) -> bytes:
        """A picture of the episode or of its task."""
        return self._own[hash] if hash in self._own else self._pictures[hash]


class Stage:
    """Plays episodes and says what their answers are worth."""

    def __init__(
        self,
        house: Supervisor,
        settings: EpisodeSettings,
        sandboxes: SandboxPool,
        tools: Sequence[Tool],
        metric: Metric,
        make_crew: Callable[[], _Crew],
        models: Mapping[str, OpenModel],
        base: Sandbox,
    ) -> None:
        self.metric = metric
        """What answers are scored by."""
        self.models = models
        """The model of each role."""
        self.base = base
        """Where tools without state run; sandboxes are forks of it."""
        self.tools = tools
        """What may be used."""
        self._house = house
        self._settings = settings
        self._sandboxes = sandboxes
        self._make_crew = make_crew
        self._idle: list[_Crew] = []
        self._crews = 0

    async def play(
        self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
    ) -> Episode:
        """An episode; the same seed is the same episode, as far as its models are deterministic.

        :raises ToolFailure: if there is no sandbox for it.
        :raises RunStopped: if a model can't be used any more.
        """
        settings = self._settings
        if max_turns is not None:
            settings = settings.model_copy(update={"max_turns": max_turns})
        async with self._sandboxes.fresh() as sandbox, self._crew() as crew:
            crew.begin(seed, temperature)
            page = Page()
            if crew.team is None:
                return await solve_alone(
                    task,
                    model=crew.models[AGENT],
                    sandbox=sandbox,
                    tools=self.tools,
                    page=page,
                    settings=settings,
                    put_blob=crew.put_blob,
                    blob=crew.blob,
                )
            return await solve_task(
                task, team=crew.team, sandbox=sandbox, tools=self.tools, page=page, settings=settings
            )

    @asynccontextmanager
    async def _crew(self) -> AsyncGenerator[_Crew]:
        """One that nobody else uses; crews are kept, for it takes longer to make one than to play a turn."""
        crew = self._idle.pop() if self._idle else await self._new_crew()
        try:
            yield crew
        finally:
            self._idle.append(crew)

    async def _new_crew(self) -> _Crew:
        crew = self._make_crew()
        if crew.team is not None:
            self._crews += 1
            number = self._crews
            for spec in crew.team.specs():
                await start_child(self._house, replace(spec, id=f"{spec.id} {number}"))
        return crew


@asynccontextmanager
async def open_stage(
    config: "TrainConfig",
    assignment: Assignment,
    models: Mapping[str, ModelSettings],
    metric: Metric | None = None,
) -> AsyncGenerator[Stage]:
    """Open everything that episodes need.

    :param models: of each role; roles of the same settings share one.
    :param metric: what answers are scored by; `None`: that of the tasks.
    :raises ConfigurationError: if something can't be used, in one line.
    """
    rules = config.episodes
    async with Supervisor(name="stage", intensity=3, period=60) as house:
        opened = await open_models(
            house, models, Accounts(max_tokens=rules.max_total_tokens, max_cost=rules.max_cost)
        )
        scored = metric or _metric(config, assignment, opened.get(JUDGE))
        settings, broken = sandbox_settings(rules)
        inside = model_tools(**dict.fromkeys(rules.model_tools, opened["tool"])) if rules.model_tools else []
        backends = [*(settings.backend_names or ()), *inside] if inside else None
        try:
            sandbox = await open_supervised(house, "servers", partial(Sandbox, settings, backends=backends))
        except ToolFailure as failure:
            raise ConfigurationError(f"sandbox: {failure.message}") from None
        tools = (await choose_tools(sandbox, rules, broken)).tools
        ahead = min(rules.workers, MOST_AHEAD)
        sandboxes = SandboxPool(sandbox, tools, most=rules.max_sandboxes, ahead=ahead, wanted=_NO_END)
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
        await start_child(house, spec)
        policy = frozenset(role for role, model in models.items() if model.tokens or model.name == POLICY)
        pictures = {picture.hash: data for picture, data in assignment.pictures.items()}
        make = partial(_new_crew, rules, opened, frozenset(policy), pictures)
        yield Stage(house, rules.episode, sandboxes, tools, scored, make, opened, sandbox)


def _new_crew(
    rules: "EpisodeRules",
    models: Mapping[str, OpenModel],
    seeded: frozenset[str],
    pictures: Mapping[str, bytes],
) -> _Crew:
    crew = _Crew(models, seeded, pictures)
    if rules.agent == "team":
        own = crew.models
        crew.team = Team(
            analyst=own["analyst"],
            planner=own["planner"],
            executor=own["executor"],
            verifier=own.get("verifier"),
            generator=own["generator"],
            put_blob=crew.put_blob,
            blob=crew.blob,
            short_prompts=rules.short_prompts,
            # An episode asks one after the other; a growing memory is put in short beside it.
            workers=2,
        )
    return crew


def _metric(config: "TrainConfig", assignment: Assignment, judge: OpenModel | None) -> Metric:
    name, options = assignment.metric, dict(assignment.options)
    if needs_judge(name):
        if config.episodes.models[JUDGE].name == OFFLINE:
            raise ConfigurationError(
                f"tasks.metric: {name} needs a model that judges; set episodes.evaluator_model_name"
            )
        # A judge says itself how it samples.
        options = {"temperature": config.episodes.evaluator_temperature, **options}
    return make_metric(name, options=options, judge=judge)
