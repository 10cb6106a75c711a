"""Run episodes with sandboxes, models and teams that stay open for the whole training run."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import structs

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.engine import (
    BranchingEngine,
    BranchSandboxes,
    EpisodeAgent,
    EpisodeEngine,
    EpisodeSettings,
    Leaf,
)
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import MemoryPage
from agentflow.learner._config import JUDGE, POLICY
from agentflow.models import (
    OFFLINE,
    Accounts,
    Call,
    Completion,
    Model,
    ModelSettings,
    ModelWrapper,
    OpenModel,
    Sampling,
)
from agentflow.rollouts import Assignment, BranchingSettings
from agentflow.runs import (
    SandboxPool,
    choose_tools,
    open_models,
    open_supervised,
    sandbox_settings,
    start_child,
)
from agentflow.sandbox import Backend, Sandbox, Tool
from agentflow.scoring import Metric, make_metric, needs_judge
from agentflow.tasks import TaskVerifiers, open_task_verifiers
from agentflow.team import ROLES, Team, TeamAgent, make_agent, model_tools
from agentflow.trace import Episode, MemoryBlobStore, Task, digest

if TYPE_CHECKING:
    from agentflow.learner._config import EpisodeRules, TrainConfig


T = TypeVar("T")

AGENT = "agent"
MAX_AHEAD = 16
"""Maximum number of sandboxes made in advance."""
_NO_END = 10**9


def with_seed(call: Call[T], source: Sequence[object], **sampling: object) -> Call[T]:
    """Return the call with a seed derived from `source`, and other changes of its sampling."""
    seed = int(digest(source), 16) % 2**31
    return structs.replace(call, sampling=structs.replace(call.sampling or Sampling(), seed=seed, **sampling))


class EpisodeSeededModel(ModelWrapper):
    """The policy with a seed per call, derived from the seed of the episode."""

    def __init__(self, model: Model, role: str) -> None:
        super().__init__(model)
        self._own = model
        self._role = role
        self._seed = ""
        self._calls = 0
        self._sampling: dict[str, object] = {}

    def begin(self, seed: str, temperature: float | None, model: Model | None = None) -> None:
        """Start another episode.

        :param model: model of this episode; `None`: that of the run.
        """
        self._model = self._own if model is None else model
        self._seed, self._calls = seed, 0
        self._sampling = {} if temperature is None else {"temperature": temperature}

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Complete one call."""
        self._calls += 1
        source = [self._seed, self._role, self._calls]
        return await self._model.complete(with_seed(call, source, **self._sampling))


class _EpisodeTeam:
    """The models and roles of one episode at a time."""

    def __init__(
        self,
        rules: "EpisodeRules",
        models: Mapping[str, OpenModel],
        policy: frozenset[str],
        images: Mapping[str, bytes],
    ) -> None:
        self.models: dict[str, Model] = {
            role: EpisodeSeededModel(model, role) if role in policy else model
            for role, model in models.items()
        }
        self.blobs = MemoryBlobStore(images)
        """Images of the episode; those of its task are readable, too."""
        self.team: Team | None = None
        if rules.agent == "team":
            self.team = Team(
                {role: model for role, model in self.models.items() if role in ROLES},
                blobs=self.blobs,
                short_prompts=rules.short_prompts,
                planner_format=rules.planner_format,
                # An episode asks its roles in turn; its growing memory is summarised concurrently.
                workers=2,
            )
        self.agent: EpisodeAgent = (
            make_agent(rules.agent, self.models[AGENT], self.blobs)
            if self.team is None
            else TeamAgent(self.team)
        )
        """The agent of the episode."""

    def begin(self, seed: str, temperature: float | None, models: Mapping[str, Model]) -> None:
        """Start another episode.

        :param models: models of trained roles in this episode, instead of those of the run.
        """
        self.blobs.clear()
        for role, model in self.models.items():
            if isinstance(model, EpisodeSeededModel):
                model.begin(seed, temperature, models.get(role))


class EpisodeTools(NamedTuple):
    """Tools of episodes, and their sandboxes."""

    base: Sandbox
    """Sandbox of stateless tools."""
    tools: Sequence[Tool]
    """Available tools."""
    sandboxes: SandboxPool
    """Forks of the base, one for each episode."""
    max_sandboxes: int
    """Maximum number of sandboxes of branching episodes."""


class SandboxEpisodeRunner:
    """Runs episodes in sandboxes. Implements `EpisodeRunner`."""

    def __init__(
        self,
        supervisor: Supervisor,
        settings: EpisodeSettings,
        tools: EpisodeTools,
        metric: Metric,
        make_team: Callable[[], _EpisodeTeam],
        models: Mapping[str, OpenModel],
        verifiers: TaskVerifiers,
        branching: BranchingSettings | None = None,
    ) -> None:
        self.metric = metric
        """Metric of the answers."""
        self.models = models
        """Model of each role."""
        self.base = tools.base
        """Sandbox of stateless tools; the sandboxes of episodes are forks of it."""
        self.tools = tools.tools
        """Available tools."""
        self.verifiers = verifiers
        """Verifiers of the tasks."""
        self._supervisor = supervisor
        self._settings = settings
        self._sandboxes = tools.sandboxes
        self._make_team = make_team
        self._branching = branching
        self._branches = BranchSandboxes(tools.base, tools.tools, max_sandboxes=tools.max_sandboxes)
        self._idle: list[_EpisodeTeam] = []
        self._teams = 0

    async def play(
        self,
        task: Task,
        seed: str,
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
        models: Mapping[str, Model] | None = None,
    ) -> Episode:
        """Run an episode; the same seed gives the same episode, as far as its models are deterministic.

        :param models: models of trained roles in this episode, instead of those of the run.
        :raises ToolFailure: if no sandbox can be made.
        :raises RunStopped: if a model can't be used any more.
        """
        settings = self._settings
        if max_turns is not None:
            settings = settings.model_copy(update={"max_turns": max_turns})
        async with self._sandboxes.fresh() as sandbox, self._borrow() as members:
            members.begin(seed, temperature, models or {})
            engine = EpisodeEngine(agent=members.agent, tools=self.tools, settings=settings)
            return await self.verifiers.run(task, sandbox, MemoryPage(), engine.solve)

    async def branch(self, task: Task, seed: str) -> Sequence[Leaf]:
        """Run the episodes of a task that share their beginnings; each path has a seed of its own.

        :raises ToolFailure: if no sandbox can be made.
        :raises RunStopped: if a model can't be used any more.
        """
        assert self._branching is not None, "only a training with branching has trees"

        @asynccontextmanager
        async def agents(path: str) -> AsyncGenerator[EpisodeAgent]:
            async with self._borrow() as members:
                members.begin(digest([seed, path]), None, {})
                yield members.agent

        engine = BranchingEngine(
            agents=agents,
            roles=self._branching.roles or (),
            tools=self.tools,
            settings=self._settings,
            sandboxes=self._branches,
            search=self._branching.make_search,
            merge_duplicates=self._branching.merge_duplicates,
        )
        return await engine.solve(
            task, MemoryPage(), prepare=self.verifiers.prepares(task), finish=self.verifiers.verify
        )

    @asynccontextmanager
    async def _borrow(self) -> AsyncGenerator[_EpisodeTeam]:
        """Borrow a team; teams are reused, because making one takes longer than a turn."""
        members = self._idle.pop() if self._idle else await self._new_team()
        try:
            yield members
        finally:
            self._idle.append(members)

    async def _new_team(self) -> _EpisodeTeam:
        members = self._make_team()
        if members.team is not None:
            self._teams += 1
            number = self._teams
            for spec in members.team.specs():
                await start_child(self._supervisor, replace(spec, id=f"{spec.id} {number}"))
        return members


async def open_sandbox_pool(
    supervisor: Supervisor, rules: "EpisodeRules", backends: Sequence[Backend] = ()
) -> EpisodeTools:
    """Open the sandbox of the settings as a child of a supervisor, and a pool of its forks. See docs/tuner.md.

    :param backends: further backends.
    :raises ConfigurationError: if a setting can't be used.
    """
    settings, broken = sandbox_settings(rules)
    backend_names = [*(settings.backend_names or ()), *backends] if backends else None
    try:
        sandbox = await open_supervised(
            supervisor, "servers", partial(Sandbox, settings, backends=backend_names)
        )
    except ToolFailure as failure:
        raise ConfigurationError(f"sandbox: {failure.message}") from None
    tools = (await choose_tools(sandbox, rules, broken)).tools
    ahead = min(rules.workers, MAX_AHEAD)
    sandboxes = SandboxPool(sandbox, tools, most=rules.max_sandboxes, ahead=ahead, wanted=_NO_END)
    spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
    await start_child(supervisor, spec)
    return EpisodeTools(sandbox, tools, sandboxes, rules.max_sandboxes)


@asynccontextmanager
async def open_episode_runner(
    config: "TrainConfig",
    assignment: Assignment,
    models: Mapping[str, ModelSettings],
    metric: Metric | None = None,
    accounts: Accounts | None = None,
) -> AsyncGenerator[SandboxEpisodeRunner]:
    """Open everything that episodes need. See docs/tuner.md.

    :param models: settings of each role; roles with equal settings share one.
    :param metric: metric of the answers; `None`: that of the tasks.
    :param accounts: usage of the models with its budgets; `None`: own ones, by the settings.
    :raises ConfigurationError: if a setting can't be used.
    """
    rules = config.episodes
    async with Supervisor(name="episodes", intensity=3, period=60) as supervisor:
        budgets = accounts or Accounts(max_tokens=rules.max_total_tokens, max_cost=rules.max_cost)
        opened = await open_models(supervisor, models, budgets)
        scored = metric or _metric(config, assignment, opened.get(JUDGE))
        inside = model_tools(**{name: opened[rules.tool_role(name)] for name in rules.model_tools})
        tools = await open_sandbox_pool(supervisor, rules, inside)
        policy = frozenset(role for role, model in models.items() if model.tokens or model.name == POLICY)
        images = {image.hash: data for image, data in assignment.pictures.items()}
        make = partial(_EpisodeTeam, rules, opened, policy, images)
        settings = rules.episode.model_copy(update={"abstain": assignment.abstain})
        verifiers = partial(
            open_task_verifiers,
            assignment.verified if metric is None else (),
            tools.base,
            tools.tools,
            sandbox_settings(rules)[0],
            max_sandboxes=rules.max_sandboxes,
        )
        verifying = await open_supervised(supervisor, "task verifiers", verifiers)
        yield SandboxEpisodeRunner(supervisor, settings, tools, scored, make, opened, verifying, config.tree)


def _metric(config: "TrainConfig", assignment: Assignment, judge: OpenModel | None) -> Metric:
    name, options = assignment.metric, dict(assignment.options)
    if needs_judge(name, options):
        if config.episodes.models[JUDGE].name == OFFLINE:
            raise ConfigurationError(
                f"tasks.metric: {name} needs a judge model; set episodes.evaluator_model_name"
            )
        # The metric's own options take precedence.
        options = {"temperature": config.episodes.evaluator_temperature, **options}
    return make_metric(name, options=options, judge=judge)
