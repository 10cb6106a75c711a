"""Groups that grow: one tree for each draw of a task, whose branches share their beginnings, and whose leaves are scored."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from msgspec import structs

from agentflow.actors import Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.growth import Greenhouse, Grower, plans_of
from agentflow.journal import Page
from agentflow.learner._group_rollout import AGAIN, GONE, Playing, words_of
from agentflow.learner._groups import FailureCause, Group, Played
from agentflow.learner._order import Draw
from agentflow.learner._trees import samples_of_tree
from agentflow.models import Call, Completion, Model, Sampling
from agentflow.runs import start_child
from agentflow.sandbox import Sandbox, Tool
from agentflow.team import Team
from agentflow.telemetry import get_logger
from agentflow.trajectory import (
    Blob,
    Failure,
    Memory,
    NextStep,
    Node,
    Plan,
    PlanRequest,
    Reply,
    Seed,
    Solution,
    SolutionRequest,
    Task,
    Tree,
    Turn,
    digest,
)

if TYPE_CHECKING:
    from agentflow.learner._config import TrainConfig
    from agentflow.learner._episode_runner import Stage
    from agentflow.learner._growth import GrowthRules

__all__ = ["Grove", "Trees", "open_trees"]

logger = get_logger(__name__)

T = TypeVar("T")


class Reseeded:
    """The policy as trees ask it: what a node samples follows from the node, whoever asks first."""

    def __init__(self, model: Model, seed: int) -> None:
        self.version = 0
        """The weights that sample now."""
        self._model = model
        self._seed = seed

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
        about = call.request
        path = [step.action.canonical for step in about.path] if isinstance(about, PlanRequest) else []
        asked = about.seed if isinstance(about, PlanRequest) else ""
        drawn = int(digest([self._seed, self.version, asked, path]), 16) % 2**31
        sampling = structs.replace(call.sampling or Sampling(), seed=drawn)
        return await self._model.complete(structs.replace(call, sampling=sampling))


class Trees:
    """What trees grow with, open as long as a run lasts."""

    def __init__(
        self,
        planner: Model,
        generator: Model,
        base: Sandbox,
        tools: Sequence[Tool],
        rules: "GrowthRules",
        seed: int,
    ) -> None:
        self._planner = Reseeded(planner, seed)
        self._pictures: dict[str, bytes] = {}
        self._growing = 0
        self.team = Team(
            planner=self._planner,
            generator=generator,
            # A verdict would make a branch depend on its siblings: everything grows.
            verify="off",
            put_blob=self._put_picture,
            blob=self._picture,
        )
        """The roles; they work while somebody runs their specs."""
        self._grower = Grower(
            rules.settings,
            run="training",
            planner=self.team.planner,
            executor=self.team.executor,
            verifier=self.team.verifier,
            greenhouse=Greenhouse(base, tools),
        )

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """One tree is worked on; pictures are kept as long as there is any."""
        self._growing += 1
        try:
            yield
        finally:
            self._growing -= 1
            if not self._growing:
                self._pictures.clear()

    async def _put_picture(self, data: bytes, mime: str) -> Blob:
        hash = sha256(data).hexdigest()
        self._pictures[hash] = data
        return Blob(hash, mime)

    async def _picture(self, hash: str) -> bytes:
        return self._pictures[hash]

    async def grow(self, task: Task, version: int) -> tuple[Tree, dict[str, tuple[Reply[Plan], ...]]]:
        """The tree of a task, and what its planner said at each node."""
        self._planner.version = version
        page = Page()
        seed = Seed(index=task.index, id=task.id, content=task.question, kwargs=task.kwargs)
        tree = await self._grower.grow(seed, page)
        return tree, plans_of(tree, page)

    async def answer(self, task: Task, path: Sequence[Node]) -> Reply[Solution]:
        """What the generator makes of a path."""
        memory = Memory(turns=tuple(_turn(node) for node in path if node.action is not None))
        request = SolutionRequest(question=task.question, images=task.images, analysis=None, memory=memory)
        return await self.team.generator.solve(request)


class Grove(Playing):
    """Playing whose groups are trees; single episodes, as validation wants them, are played as ever."""

    def __init__(self, trees: Trees, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of Playing
        super().__init__(*arguments, **more)
        self._trees = trees

    async def group(self, draw: Draw, size: int, places: list[Played | None] | None = None) -> Group:
        """Grow the tree of a draw; how many leaves it has follows from how trees grow.

        :raises RunStopped: if the run can't go on.
        """
        del size, places
        group = Group(number=draw.number, name=draw.group)
        for _ in range(self._tries):
            async with self._room:
                group = await self._try_tree(draw)
            kinds = {failure.kind for failure in group.failures}
            if group.samples or not kinds & AGAIN:
                break
            if FailureCause.MODEL in kinds:
                await self._engine_ready()
        return group

    async def _try_tree(self, draw: Draw) -> Group:
        version = self.version
        failure = Failure(FailureCause.TIME, f"it did not end in {self._seconds:g} seconds")
        try:
            with anyio.move_on_after(self._seconds):
                return await self._grow(draw, version)
        except RunStopped as stopped:
            if stopped.cause is not StopCause.MODEL:
                raise
            failure = Failure(FailureCause.MODEL, stopped.message)
        except ConfigurationError:
            raise
        except Exception as error:  # boundary: a tree that crashes is data, and must not end the others
            logger.exception("tree crashed", task=draw.task.id)
            failure = Failure(FailureCause.CRASHED, words_of(error))
        return Group(number=draw.number, name=draw.group, failures=(failure,))

    async def _grow(self, draw: Draw, version: int) -> Group:
        async with self._trees.open():
            return await self._grown(draw, version)

    async def _grown(self, draw: Draw, version: int) -> Group:
        tree, plans = await self._trees.grow(draw.task, version)
        for reply in (reply for replies in plans.values() for reply in replies):
            if reply.failure is not None and reply.failure.kind in GONE:
                lost = Failure(FailureCause.MODEL, f"planner: {reply.failure.message}")
                return Group(number=draw.number, name=draw.group, failures=(lost,))
        rewards: dict[str, float] = {}
        failures: list[Failure] = []

        async def score(leaf: Node) -> None:
            reply = await self._trees.answer(draw.task, tree.path(leaf.id))
            if reply.failure is not None and reply.failure.kind in GONE:
                failures.append(Failure(FailureCause.MODEL, f"generator: {reply.failure.message}"))
                return
            answer = "" if reply.value is None else reply.value.answer
            worth, failure = await self._worth(answer, draw.task)
            if failure is not None:
                failures.append(failure)
            else:
                rewards[leaf.id] = worth

        async with anyio.create_task_group() as tasks:
            for leaf in tree.leaves():
                tasks.start_soon(score, leaf)
        samples = samples_of_tree(
            tree, plans, rewards, group=draw.group, temperature=self._temperature, version=version
        )
        return Group(number=draw.number, name=draw.group, samples=tuple(samples), failures=tuple(failures))


@asynccontextmanager
async def open_trees(config: "TrainConfig", stage: "Stage") -> AsyncGenerator[Trees | None]:
    """What trees grow with, beside the episodes of a stage; none if groups are separate episodes.

    :raises ConfigurationError: if trees can't be grown with these settings.
    """
    rules = config.growth
    if rules is None:
        yield None
        return
    if config.episodes.agent != "team" or config.episodes.trained_roles != ("planner",):
        raise ConfigurationError(
            "growth: trees train the planner of a team; leave out episodes.agent and episodes.trained"
        )
    trees = Trees(
        stage.models["planner"], stage.models["generator"], stage.base, stage.tools, rules, config.seed
    )
    async with Supervisor(name="grove", intensity=3, period=60) as house:
        for spec in trees.team.specs():
            await start_child(house, spec)
        yield trees


def _turn(node: Node) -> Turn:
    assert node.action is not None
    return Turn(
        number=node.depth,
        step=NextStep(node.intent, "", node.intent, node.action.tool),
        action=node.action,
        result=node.observation.text,
        images=node.observation.blobs,
        failure=node.failure,
    )
