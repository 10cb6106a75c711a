"""Tree rollouts: one tree for each draw of a task. Branches share their prefix; the leaves are scored."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agentflow.actors import Supervisor, together
from agentflow.engine import BranchSandboxes, Grower, plans_of
from agentflow.errors import ConfigurationError
from agentflow.journal import MemoryPage
from agentflow.learner._episode_runner import SandboxEpisodeRunner, with_seed
from agentflow.learner._group_rollout import (
    UNREACHABLE,
    EpisodeRunner,
    GroupRollout,
    GroupSettings,
    ready_at_once,
)
from agentflow.learner._groups import EpisodeResult, FailureCause, Group, TaskDraw, samples_of_tree
from agentflow.models import Call, Completion, Model, ModelWrapper
from agentflow.runs import start_child
from agentflow.sandbox import Sandbox, Tool
from agentflow.tasks import TaskVerifiers
from agentflow.team import ObservationLimits, Team, path_memory
from agentflow.telemetry import get_logger
from agentflow.trace import (
    Failure,
    MemoryBlobStore,
    Node,
    Plan,
    PlanRequest,
    Reply,
    Seed,
    Solution,
    SolutionRequest,
    Task,
    Tree,
)

if TYPE_CHECKING:
    from agentflow.learner._config import GrowthRules, TrainConfig


logger = get_logger(__name__)

T = TypeVar("T")


class NodeSeededModel(ModelWrapper):
    """The policy with a seed per node, so that samples do not depend on the order of calls."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__(model)
        self.version = 0
        """Version of the weights that sample now."""
        self._seed = seed

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Complete one call."""
        request = call.request
        path = [step.call.canonical for step in request.path] if isinstance(request, PlanRequest) else []
        task = request.seed if isinstance(request, PlanRequest) else ""
        return await self._model.complete(with_seed(call, [self._seed, self.version, task, path]))


class TreeGrower:
    """Grows trees and answers their leaves for the duration of a run."""

    def __init__(
        self,
        planner: Model,
        generator: Model,
        base: Sandbox,
        tools: Sequence[Tool],
        rules: "GrowthRules",
        seed: int,
        verifiers: TaskVerifiers | None = None,
        observations: ObservationLimits | None = None,
    ) -> None:
        """Make the roles.

        :param observations: room for observations in a prompt.
        """
        self.verifiers = verifiers or TaskVerifiers({})
        """Verifiers of the tasks."""
        self._max_depth = rules.max_depth
        self._observations = observations or ObservationLimits()
        self._planner = NodeSeededModel(planner, seed)
        self._images = MemoryBlobStore()
        self._open_trees = 0
        self.team = Team(
            {"planner": self._planner, "generator": generator},
            blobs=self._images,
            # A verdict would make a branch depend on its siblings, so every branch grows.
            verify="off",
            observations=self._observations,
        )
        """The roles; a supervisor must run their specs."""
        self._grower = Grower(
            rules.settings,
            run="training",
            planner=self.team.planner,
            executor=self.team.executor,
            verifier=self.team.verifier,
            sandboxes=BranchSandboxes(base, tools),
        )

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep the images of a tree while it is in use; they are released with the last tree."""
        self._open_trees += 1
        try:
            yield
        finally:
            self._open_trees -= 1
            if not self._open_trees:
                self._images.clear()

    async def grow(self, task: Task, version: int) -> tuple[Tree, dict[str, tuple[Reply[Plan], ...]]]:
        """Grow the tree of a task; return it with the planner's replies by node."""
        self._planner.version = version
        page = MemoryPage()
        seed = Seed(index=task.index, id=task.id, content=task.question, kwargs=task.kwargs)
        tree = await self._grower.grow(seed, page)
        return tree, plans_of(tree, page)

    async def answer(self, task: Task, path: Sequence[Node]) -> Reply[Solution]:
        """Return the generator's answer for a path, from the results that the planner was shown."""
        memory = path_memory(task.question, path, self._max_depth, self._observations)
        request = SolutionRequest(question=task.question, images=task.images, analysis=None, memory=memory)
        return await self.team.generator.solve(request)


class TreeGroupRollout(GroupRollout):
    """Runs groups as trees. Single episodes, as in validation, are unchanged."""

    def __init__(
        self,
        trees: TreeGrower,
        runner: EpisodeRunner,
        settings: GroupSettings,
        *,
        engine_ready: Callable[[], Awaitable[None]] = ready_at_once,
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        """:param engine_ready: waits until the engine answers.
        :param on_result: called with the result of each episode.
        """
        super().__init__(runner, settings, engine_ready=engine_ready, on_result=on_result)
        self._trees = trees

    async def group(
        self, draw: TaskDraw, size: int, results: list[EpisodeResult | None] | None = None
    ) -> Group:
        """Grow the tree of a draw; the growth settings determine the number of its leaves.

        :raises RunStopped: if the run can't continue.
        """
        del size, results
        return await self._attempt(
            "tree",
            f"{draw.number}/{self.version}",
            draw.task,
            partial(self._grow, draw),
            lambda failure: Group(number=draw.number, name=draw.group, failures=(failure,)),
            lambda group: () if group.samples else [failure.kind for failure in group.failures],
        )

    async def _grow(self, draw: TaskDraw) -> Group:
        version = self.version
        async with self._trees.open():
            tree, plans = await self._trees.grow(draw.task, version)
            return await self._score(draw, tree, plans, version)

    async def _score(
        self, draw: TaskDraw, tree: Tree, plans: Mapping[str, tuple[Reply[Plan], ...]], version: int
    ) -> Group:
        """Return the leaves of a tree as a group, each with the reward of its answer."""
        for reply in (reply for replies in plans.values() for reply in replies):
            if reply.failure is not None and reply.failure.kind in UNREACHABLE:
                lost = Failure(FailureCause.MODEL, f"planner: {reply.failure.message}")
                return Group(number=draw.number, name=draw.group, failures=(lost,))
        leaves = list(tree.leaves())
        scored = await together([partial(self._score_leaf, draw.task, tree.path(leaf.id)) for leaf in leaves])
        failures = [failure for _, failure in scored if failure is not None]
        rewards = {
            leaf.id: reward for leaf, (reward, failure) in zip(leaves, scored, strict=True) if failure is None
        }
        samples = samples_of_tree(
            tree, plans, rewards, group=draw.group, temperature=self._settings.temperature, version=version
        )
        return Group(
            number=draw.number,
            name=draw.group,
            samples=tuple(samples),
            failures=tuple(failures),
            task_class=draw.task_class,
        )

    async def _score_leaf(self, task: Task, path: Sequence[Node]) -> tuple[float, Failure | None]:
        reply = await self._trees.answer(task, path)
        if reply.failure is not None and reply.failure.kind in UNREACHABLE:
            return 0.0, Failure(FailureCause.MODEL, f"generator: {reply.failure.message}")
        answer = "" if reply.value is None else reply.value.answer
        return await self._reward(answer, task, await self._trees.verifiers.judge(task, answer))


@asynccontextmanager
async def open_tree_grower(
    config: "TrainConfig", runner: SandboxEpisodeRunner
) -> AsyncGenerator[TreeGrower | None]:
    """Open what grows trees, with the models and tools of an episode runner; `None` without `growth` settings.

    :raises ConfigurationError: if these settings can't be used with trees.
    """
    rules = config.growth
    if rules is None:
        yield None
        return
    if config.episodes.agent != "team" or config.episodes.trained_roles != ("planner",):
        raise ConfigurationError(
            "growth: tree rollouts train the planner of a team; leave out episodes.agent and episodes.trained"
        )
    if of_state := runner.verifiers.of_state:
        raise ConfigurationError(
            f"growth: tasks of the kind {of_state[0]} begin in states of their own; leave out growth"
        )
    trees = TreeGrower(
        runner.models["planner"],
        runner.models["generator"],
        runner.base,
        runner.tools,
        rules,
        config.seed,
        runner.verifiers,
        ObservationLimits(each=config.episodes.max_observation_chars, total=config.episodes.memory_chars),
    )
    async with Supervisor(name="trees", intensity=3, period=60) as supervisor:
        for spec in trees.team.specs():
            await start_child(supervisor, spec)
        yield trees
