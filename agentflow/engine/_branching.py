"""Branching episodes: an agent works on a task along several paths that share their beginnings.

A path is an episode that stops before each *decision*, a model call of the deciding role. Once all paths of a task wait or
have answered, the search chooses which continue, and how often each decision is made. The first continuation is the path itself; each further
one is a new path, which recalls all earlier effects and acts in a copy of the sandbox. Timing has no effect.

The effects between two decisions are recorded in a section of the page, named after the path that leads there: `root`, `0`,
`0-1`, … After a crash the same program runs again, and recorded effects are returned as they were.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Protocol, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from agentflow.engine._episode import (
    EngineContext,
    EpisodeAgent,
    EpisodeSettings,
    OpenEpisode,
)
from agentflow.engine._growth import path_key
from agentflow.engine._path_search import PathNode, PathSearch
from agentflow.engine._sandboxes import (
    BranchSandboxes,
    BranchState,
    CannotBranch,
    EpisodeActions,
    Prepare,
    TreeSandboxes,
)
from agentflow.errors import (
    ConfigurationError,
    ErrorKind,
    RunStopped,
    StopCause,
    WorkPostponed,
    error_line,
    unwrap_group,
)
from agentflow.journal import BranchPage, Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.telemetry import get_logger
from agentflow.trace import (
    BranchPoint,
    Ending,
    Episode,
    Exchange,
    Failure,
    Isolation,
    Reply,
    Task,
    Turn,
    tokens_of,
)

logger = get_logger(__name__)

CRASHED = "crashed"
"""Journal key of a path that crashed, and kind of its failure."""
COPY = "copy"
"""Journal key of the record of how the state of a path was copied."""
VALUE = "value"
"""Journal key of the guide's estimate of a path."""


class StateCopy(Struct, frozen=True, omit_defaults=True):
    """Record of how the state of a path was copied, under `copy`."""

    isolation: Isolation = Isolation.SHARED
    """Way of copying; `shared`: there was no state."""
    reason: str = ""
    """Reason that it is no fork."""
    refused: bool = False
    """It could not be copied: the path was not tried."""


class Leaf(Struct, frozen=True, kw_only=True):
    """End of a path."""

    path: tuple[int, ...]
    """Positions of its continuations."""
    episode: Episode | None = None
    """Its episode, without an answer if the search gave it up; `None`: it crashed, or was not tried."""
    failure: Failure | None = None
    """Reason that there is no answer."""
    value: float | None = None
    """Estimate of the guide; `None` without a guide."""


class Guide(Protocol):
    """Estimates paths for a search. See docs/engine.md."""

    async def __call__(self, task: Task, turns: Sequence[Turn], answer: str | None) -> float:
        """Return how promising a path is, from 0 to 1.

        :param answer: its answer; `None`: it goes on.
        """
        ...


Finish: TypeAlias = Callable[[Episode, Sandbox | None, Page], Awaitable[Episode]]
"""Completes an episode while its sandbox is open; `None`: its state must be replayed."""


async def _unchanged(episode: Episode, sandbox: Sandbox | None, page: Page) -> Episode:
    return episode


@dataclass(frozen=True, kw_only=True)
class BranchingEngine:
    """Has an agent work on tasks along several paths. See docs/engine.md."""

    agents: Callable[[str], AbstractAsyncContextManager[EpisodeAgent]]
    """Opens the agent of a path, whose name is the key of the path."""
    roles: Collection[str]
    """Roles whose calls are decisions."""
    tools: Sequence[Tool]
    """Available tools."""
    settings: EpisodeSettings
    """Limits of each path."""
    sandboxes: BranchSandboxes
    """Sandboxes of the run."""
    search: Callable[[], PathSearch]
    """Makes the search of a task."""
    merge_duplicates: bool = True
    """Run equal continuations of a decision once."""
    guide: Guide | None = None
    """Estimates paths."""
    context: EngineContext = field(default_factory=EngineContext)
    """Prices, gate and clock."""

    async def solve(
        self, task: Task, page: Page, *, prepare: Prepare | None = None, finish: Finish = _unchanged
    ) -> tuple[Leaf, ...]:
        """Have the agent work on a task; return the ends of all paths, in order. Recorded effects are not repeated.

        :param prepare: brings a fresh sandbox into the initial state of the task.
        :param finish: completes each episode while its sandbox is open.
        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        search = self.search()
        async with self.sandboxes.reserve(search.width, prepare) as sandboxes:
            return await _Branching(self, task, page, search, sandboxes, finish).solve()


class _RecordedCrash(Exception):
    """The path crashed in an earlier process."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class _Branching:
    """Work on one task."""

    def __init__(
        self,
        engine: BranchingEngine,
        task: Task,
        page: Page,
        search: PathSearch,
        sandboxes: TreeSandboxes,
        finish: Finish,
    ) -> None:
        self.engine = engine
        self.task = task
        self.sandboxes = sandboxes
        self.finish = finish
        self._page = page
        self._search = search
        self.leaves: list[Leaf] = []
        self._waiting: dict[tuple[int, ...], _Path] = {}
        self._running = 0
        self._quiet = anyio.Event()
        self._stops: list[RunStopped] = []

    async def solve(self) -> tuple[Leaf, ...]:
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                await self._grow(tasks)
        except* Exception as group:  # boundary: the first error is raised again, by itself
            failure = unwrap_group(group)
        if failure is not None:
            raise failure
        if self._stops:
            # The end of the run takes precedence over that of a seed.
            raise min(self._stops, key=lambda stop: isinstance(stop, WorkPostponed))
        return tuple(sorted(self.leaves, key=lambda leaf: leaf.path))

    async def _grow(self, tasks: TaskGroup) -> None:
        page = BranchPage(self._page)
        page.enter(path_key(()))
        root = PathNode(self.task, (), None)
        root.share = self._search.share
        self._start(tasks, _Path(self, root, page, BranchState()))
        while True:
            await self._quiet.wait()
            frontier = [path.node for _, path in sorted(self._waiting.items())]
            chosen = self._search.choose(frontier) if frontier and not self._stops else ()
            if not chosen:
                break
            if any(node not in frontier for node, _ in chosen):
                raise ConfigurationError("search: `choose` may only return nodes of the frontier")
            for path, count in [(self._waiting[node.path], count) for node, count in chosen]:
                if count:
                    await self._continue(tasks, path, count)
                else:
                    self._close(path)
        for path in list(self._waiting.values()):
            self._close(path)

    async def _continue(self, tasks: TaskGroup, path: "_Path", count: int) -> None:
        """Make a decision several times: by copies of the waiting path and, unless it is revisited, by the path itself."""
        siblings = _Siblings() if self.engine.merge_duplicates and count > 1 else None
        stays = self._search.revisits
        positions = path.node.next_positions(count)
        shares = dict(zip(positions, path.node.shares(count), strict=True))
        copied = positions if stays else positions[1:]
        copies = [await path.copy(position, siblings, shares[position]) for position in copied]
        tried = [copy for copy in copies if copy is not None]
        if not stays or not tried:
            # One continuation of a state needs no copy of it; it also answers for those that can't be copied.
            path.node.is_open = False
            del self._waiting[path.node.path]
            share = sum(shares.values()) - sum(copy.node.share for copy in tried)
            path.resume(path.node.next_positions(1)[0] if stays else positions[0], siblings, share)
            self._running += 1
        for copy in tried:
            self._start(tasks, copy)
        self._quiet = anyio.Event()

    def _start(self, tasks: TaskGroup, path: "_Path") -> None:
        self._running += 1
        tasks.start_soon(self._run, path)

    def _close(self, path: "_Path") -> None:
        """Give a waiting path up."""
        path.node.is_open = False
        del self._waiting[path.node.path]
        if not path.node.children:
            self.leaves.append(path.pruned())
        path.scope.cancel()

    async def _run(self, path: "_Path") -> None:
        with path.scope:
            try:
                self.leaves.append(await path.run())
            except RunStopped as stop:
                if stop.cause is StopCause.JOURNAL:
                    raise
                self._stops.append(stop)
        if path.node.is_open:
            path.node.is_open = False
            self._rest()

    def wait(self, path: "_Path") -> None:
        """Note that a path waits at a decision."""
        self._waiting[path.node.path] = path
        self._rest()

    def _rest(self) -> None:
        self._running -= 1
        if not self._running:
            self._quiet.set()


class _Path:
    """One path of a task. Implements `DecisionPoints`."""

    def __init__(
        self,
        branching: _Branching,
        node: PathNode,
        page: BranchPage,
        state: BranchState,
        points: Sequence[tuple[BranchPoint, PathNode]] = (),
        siblings: "_Siblings | None" = None,
    ) -> None:
        self.node = node
        """Its newest node."""
        self.scope = anyio.CancelScope()
        """Ends the path."""
        self._branching = branching
        self._engine = branching.engine
        self._page = page
        self._points = list(points)
        self._siblings = siblings
        self._recalled = len(points)
        self._resumed = anyio.Event()
        self._turns = self._calls = 0
        self._state = state
        self._actions: EpisodeActions | None = None
        self._so_far: Callable[[], Episode] | None = None

    async def run(self) -> Leaf:
        """Run the path to its end. A crash is recorded, and ends it without an answer."""
        try:
            self._check_crash()
            return await self._play()
        except (RunStopped, ConfigurationError):
            raise
        except _RecordedCrash as crash:
            return Leaf(path=self.node.path, failure=crash.failure)
        except Exception as error:  # boundary: a path that crashes is data, and the others continue
            logger.exception("path crashed", task=self.node.task.id, path=path_key(self.node.path))
            failure = Failure(CRASHED, error_line(error))
            await self._page.record(self._key(CRASHED), failure)
            return Leaf(path=self.node.path, failure=failure)
        finally:
            self._withdraw()
            if self._actions is not None:
                with anyio.CancelScope(shield=True):
                    await self._actions.release()

    async def _play(self) -> Leaf:
        engine = self._engine
        tools = {tool.name: tool for tool in engine.tools}
        async with engine.agents(path_key(self.node.path)) as agent:
            source, base = self._branching.sandboxes, engine.sandboxes.base
            self._actions = EpisodeActions(self._page, tools, agent, source, base, self._state)
            task, page = self.node.task, self._page
            episode = OpenEpisode(task, tools, engine.settings, page, self._actions, engine.context, self)
            self._so_far = partial(episode.so_far, agent.name, Ending.PRUNED)
            played = replace(await episode.play(agent), branches=self._branches)
            node = self.node
            played = await self._branching.finish(played, self._actions.state.sandbox, page)
            self._describe(played.turns, episode.exchanges)
            node.is_answer = played.failure is None
            if node.is_answer:
                node.value = await self._estimate(played.answer)
        return Leaf(path=node.path, episode=played, failure=played.failure, value=node.value)

    @property
    def _branches(self) -> tuple[BranchPoint, ...]:
        return tuple(replace(point, share=node.share, drawn=node.drawn) for point, node in self._points)

    def pruned(self) -> Leaf:
        """Return the path as it is, without an answer."""
        assert self._so_far is not None, "a path that waits has begun"
        return Leaf(
            path=self.node.path,
            episode=replace(self._so_far(), branches=self._branches),
            value=self.node.value,
        )

    async def arrive(self, episode: OpenEpisode, role: str) -> None:
        """Wait before a decision, until it is chosen how often it is made."""
        if role not in self._engine.roles:
            return
        if self._recalled:
            self._recalled -= 1
            return
        self._withdraw()
        episode.check_limits()
        self._turns, self._calls = len(episode.turns), len(episode.exchanges)
        self._describe(episode.turns, episode.exchanges)
        self.node.value = await self._estimate(None)
        self._resumed = anyio.Event()
        self._branching.wait(self)
        await self._resumed.wait()
        self._check_crash()

    async def leave(self, episode: OpenEpisode, role: str, reply: Reply[Any]) -> None:
        """End the path if a sibling made the same decision."""
        if self._siblings is None or self._recalled or role not in self._engine.roles:
            return
        siblings, self._siblings = self._siblings, None
        if await siblings.is_duplicate(self.node, _mark(reply)):
            self.scope.cancel()
            await anyio.sleep_forever()

    def resume(self, position: int, siblings: "_Siblings | None", share: int) -> None:
        """Continue as one of the continuations of the decision."""
        self._points.append(self._next(position, StateCopy(), share))
        self.node = self._points[-1][1]
        self._page.enter(path_key(self.node.path))
        self._join(siblings)
        self._resumed.set()

    async def copy(self, position: int, siblings: "_Siblings | None", share: int) -> "_Path | None":
        """Return another path that continues from here; `None` if the state can't be copied."""
        assert self._actions is not None, "a path that waits has begun"
        page = self._page.branch()
        key = path_key((*self.node.path, position))
        page.enter(key)
        state = BranchState(self._actions.state.history)
        record = page.recall(f"{COPY}/{key}", StateCopy)
        if record is None:
            try:
                state, isolation, reason = await self._actions.branch(self._branching.sandboxes)
                record = StateCopy(isolation, reason)
            except CannotBranch as error:
                record = StateCopy(reason=f"not tried: its state can't be copied: {error}", refused=True)
            await page.note(f"{COPY}/{key}", record)
        if record.refused:
            failure = Failure(ErrorKind.CANNOT_FORK, record.reason)
            self._branching.leaves.append(Leaf(path=(*self.node.path, position), failure=failure))
            return None
        points = [*self._points, self._next(position, record, share)]
        path = _Path(self._branching, points[-1][1], page, state, points)
        path._join(siblings)
        return path

    def _check_crash(self) -> None:
        if (failure := self._page.recall(self._key(CRASHED), Failure)) is not None:
            raise _RecordedCrash(failure)

    def _next(self, position: int, copy: StateCopy, share: int) -> tuple[BranchPoint, PathNode]:
        node = PathNode(self.node.task, (*self.node.path, position), self.node)
        node.share = share
        self.node.children.append(node)
        point = BranchPoint(position, self._turns, self._calls, isolation=copy.isolation, reason=copy.reason)
        return point, node

    def _join(self, siblings: "_Siblings | None") -> None:
        self._siblings = siblings
        if siblings is not None:
            siblings.expect()

    def _withdraw(self) -> None:
        """Let the siblings go on without a decision of this path, which failed."""
        siblings, self._siblings = self._siblings, None
        if siblings is not None:
            siblings.withdraw()

    def _describe(self, turns: Sequence[Turn], exchanges: Sequence[Exchange]) -> None:
        """Describe the newest node by what happened so far."""
        self.node.turns = tuple(turns)
        since = self._points[-1][0].calls if self._points else 0
        logprobs = [
            logprob
            for exchange in exchanges[since:]
            if exchange.role in self._engine.roles
            for tokens in tokens_of(exchange)
            for logprob in tokens.logprobs
        ]
        self.node.surprise = -fmean(logprobs) if logprobs else None

    async def _estimate(self, answer: str | None) -> float | None:
        """Return the guide's estimate of the newest node."""
        engine, node = self._engine, self.node
        if engine.guide is None:
            return None
        estimate = partial(engine.guide, node.task, node.turns, answer)
        return await self._page.once(self._key(VALUE), float, partial(engine.context.gate, estimate))

    def _key(self, what: str) -> str:
        return f"{what}/{path_key(self.node.path)}"


class _Siblings:
    """Continuations of one decision, of which equal ones are run once."""

    def __init__(self) -> None:
        self._pending = 0
        self._marks: dict[PathNode, object] = {}
        self._complete = anyio.Event()

    def expect(self) -> None:
        """Expect another continuation."""
        self._pending += 1

    def withdraw(self) -> None:
        """Note that a continuation ended without a decision."""
        self._pending -= 1
        if not self._pending:
            self._merge()
            self._complete.set()

    async def is_duplicate(self, node: PathNode, mark: object) -> bool:
        """Return whether an earlier continuation is equal, once all have decided.

        :param mark: the decision; `None` is equal to no other.
        """
        if mark is not None:
            self._marks[node] = mark
        self.withdraw()
        await self._complete.wait()
        return node.drawn == 0

    def _merge(self) -> None:
        first: dict[object, PathNode] = {}
        for node in sorted(self._marks, key=lambda node: node.path):
            kept = first.setdefault(self._marks[node], node)
            if kept is not node and node.parent is not None:
                kept.drawn += 1
                kept.share += node.share
                node.drawn = 0
                node.parent.children.remove(node)


def _mark(reply: Reply[Any]) -> object:
    """Return what makes two decisions equal."""
    if tokens := tokens_of(reply):
        return tuple(call.sampled for call in tokens)
    return None if reply.value is None else msgspec.json.encode(reply.value)
