"""Tasks with their sandboxes for agents of other frameworks: an episode is opened, stepped and scored from outside."""

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.engine import Prepare, bind_action, card_of, no_such_tool
from agentflow.errors import AgentFlowError, ConfigurationError, ToolFailure, error_line
from agentflow.journal import MemoryPage, Page
from agentflow.rollouts import Assignment, RolloutConfig, assign
from agentflow.runs import SandboxPool, choose_tools, open_supervised, sandbox_settings, start_child
from agentflow.sandbox import Sandbox, Tool
from agentflow.scoring import VERIFIER, Metric, make_metric, needs_judge
from agentflow.tasks import TaskVerifiers, open_task_verifiers, scored_verdict
from agentflow.team import call_tool, result_text
from agentflow.trace import (
    Action,
    ActionOutcome,
    Ending,
    Episode,
    Failure,
    MemoryBlobStore,
    NextStep,
    Observation,
    Solution,
    Task,
    Turn,
)

WAIT_SECONDS: Final = 30.0
"""Seconds for which an episode waits for a free sandbox."""
MAX_WAITING: Final = 256
"""Maximum number of episodes that wait for a free sandbox."""


class HostFailure(AgentFlowError):
    """A task, session or tool call that a client asked for is not possible. One line."""


class HostBusy(HostFailure):
    """All sandboxes are in use; a later request may succeed. One line."""


class ToolOutcome(Struct, frozen=True):
    """Result of a tool call, as a model sees it."""

    text: str
    """The result, or the reason of a failure."""
    failed: bool = False
    """The call failed."""
    images: tuple[dict[str, str], ...] = ()
    """Images of the result: `mime`, and `data` in base64."""


class TaskScore(Struct, frozen=True):
    """Score of an episode."""

    reward: float | None
    """Reward; `None`: it could not be scored, see `failure`."""
    reasons: tuple[str, ...] = ()
    """Conditions that do not hold."""
    failure: str = ""
    """Reason of a missing reward."""


class TaskSession:
    """An open episode: a task with a sandbox of its own. `TaskHost.open` makes it."""

    def __init__(self, task: Task, tools: Sequence[Tool], limit: int) -> None:
        self.task = task
        """The task."""
        self._tools = {tool.name: tool for tool in tools}
        self._limit = limit
        self._sandbox: Sandbox | None = None
        self._turns: list[Turn] = []
        self._answer = ""
        self._answered = anyio.Event()
        self._finished = anyio.Event()
        self._calling = anyio.Lock()
        self._score = TaskScore(None, failure="the session was closed")
        self._scope = anyio.CancelScope()

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools, in the format of chat completions; arguments that the task fixes are left out."""
        cards = [card_of(tool, self.task.kwargs, self._tools) for tool in self._tools.values()]
        return [
            {
                "type": "function",
                "function": {
                    "name": card.name,
                    "description": card.description,
                    "parameters": dict(card.schema),
                },
            }
            for card in cards
        ]

    @property
    def calls(self) -> int:
        """Number of tool calls so far."""
        return len(self._turns)

    @property
    def ended(self) -> bool:
        """Its sandbox is removed."""
        return self._finished.is_set()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool. Calls of a session run in order; a call that the tool refuses is an outcome.

        :raises HostFailure: if the session has ended.
        """
        async with self._calling:
            if self._sandbox is None or self._answered.is_set() or self._finished.is_set():
                raise HostFailure("the session has ended; open another one")
            blobs = MemoryBlobStore()
            tool = self._tools.get(name)
            action: Action | None = None
            failure: Failure | None = no_such_tool(name, self._tools)
            if tool is not None:
                action, failure = bind_action(tool, arguments, self.task.kwargs)
            if action is not None and failure is None:
                outcome = await call_tool(self._sandbox, action, blobs)
            else:
                outcome = ActionOutcome(Observation(), failure)
            text = result_text(
                outcome.observation.text, self._limit, self.task.question, action, "", failure=outcome.failure
            )
            self._turns.append(
                Turn(
                    number=len(self._turns) + 1,
                    step=NextStep("", "", "", name),
                    action=action,
                    result=text,
                    failure=outcome.failure,
                    trouble=outcome.trouble,
                )
            )
            images = [
                {"mime": blob.mime, "data": base64.b64encode(await blobs.read(blob.hash)).decode()}
                for blob in outcome.observation.blobs
            ]
            return ToolOutcome(text, outcome.failure is not None, tuple(images))

    async def submit(self, answer: str) -> TaskScore:
        """Give the answer, end the episode and return its score; a second answer changes nothing."""
        async with self._calling:
            if not self._answered.is_set():
                self._answer = answer
                self._answered.set()
        await self._finished.wait()
        return self._score

    async def close(self) -> None:
        """End the episode without an answer, and remove its sandbox."""
        self._scope.cancel()
        await self._finished.wait()

    async def play(
        self,
        host: "TaskHost",
        wait_seconds: float,
        max_waiting: int,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold the sandbox until there is an answer, and score it.

        :raises HostFailure: if it does not begin.
        """

        async def solve(task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None) -> Episode:
            self._sandbox = sandbox
            task_status.started()
            await self._answered.wait()
            return Episode(
                task=task,
                agent="single",
                ending=Ending.ANSWERED,
                turns=tuple(self._turns),
                solution=Solution("", self._answer.strip()),
            )

        try:
            with self._scope:
                async with host.slot(wait_seconds, max_waiting), host.sandboxes.fresh() as sandbox:
                    episode = await host.verifiers.run(self.task, sandbox, MemoryPage(), solve)
                    self._score = await host.score(episode)
        except HostBusy:
            raise
        except Exception as error:  # The client gets the reason.
            if self._sandbox is None:
                raise HostFailure(
                    f"task {self.task.id}: its sandbox can't be made: {error_line(error)}"
                ) from error
            self._score = TaskScore(None, failure=error_line(error))
        finally:
            self._sandbox = None
            self._finished.set()


class TaskHost:
    """Tasks, tools and sandboxes for sessions. `open_task_host` makes it."""

    def __init__(
        self,
        assignment: Assignment,
        tools: Sequence[Tool],
        metric: Metric | None,
        sandboxes: SandboxPool,
        verifiers: TaskVerifiers,
        group: TaskGroup,
        *,
        max_sandboxes: int,
        limit: int,
    ) -> None:
        self.name = assignment.name
        """Name of the benchmark or of the file of tasks."""
        self.tasks = {task.id: task for task in assignment.tasks}
        """Tasks by id, in order."""
        self.sandboxes = sandboxes
        """Sandboxes of the sessions."""
        self.verifiers = verifiers
        """Verifiers of the tasks."""
        self._tools = tools
        self._metric = metric
        self._group = group
        self._free = anyio.Semaphore(max_sandboxes)
        self._limit = limit

    @property
    def waiting(self) -> int:
        """Number of episodes that wait for a free sandbox."""
        return self._free.statistics().tasks_waiting

    def find(self, task: str | None, number: int = 0) -> Task:
        """Return a task by its id, or by its number, which is taken modulo the number of tasks.

        :raises HostFailure: if there is none with this id.
        """
        if task is None:
            return list(self.tasks.values())[number % len(self.tasks)]
        if task not in self.tasks:
            raise HostFailure(f"task: there is no task {task[:100]!r}; name one of the list")
        return self.tasks[task]

    async def open(
        self, task: Task, *, wait_seconds: float = WAIT_SECONDS, max_waiting: int = MAX_WAITING
    ) -> TaskSession:
        """Open an episode of a task in a sandbox of its own; while all are in use, wait in order of arrival.

        :param wait_seconds: seconds to wait for a free sandbox.
        :param max_waiting: maximum number of episodes that wait.
        :raises HostBusy: if no sandbox becomes free in time, or too many episodes wait.
        :raises HostFailure: if its sandbox or its initial state can't be made.
        """
        session = TaskSession(task, self._tools, self._limit)
        await self._group.start(session.play, self, wait_seconds, max_waiting)
        return session

    @asynccontextmanager
    async def slot(self, wait_seconds: float, max_waiting: int) -> AsyncGenerator[None]:
        """Hold one of the sandboxes that may be alive.

        :raises HostBusy: if none becomes free in time, or too many episodes wait.
        """
        if not self._free.value and self.waiting >= max_waiting:
            raise HostBusy(
                f"all sandboxes are in use, and {max_waiting} sessions wait for one; try again later"
            )
        try:
            with anyio.fail_after(wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise HostBusy(
                f"no sandbox became free within {wait_seconds:g} seconds; try again later"
            ) from None
        try:
            yield
        finally:
            self._free.release()

    async def score(self, episode: Episode) -> TaskScore:
        """Return the score of an episode: the verdict of its task's verifier, or that of the metric."""
        if episode.verdict is not None:
            scored = scored_verdict(episode.verdict)
            reasons = episode.verdict.reasons
        else:
            assert self._metric is not None, "tasks without a verifier have a metric"
            scored, reasons = await self._metric.score(episode.answer, episode.task), ()
        if scored.failure is not None:
            return TaskScore(None, reasons, scored.failure.message)
        return TaskScore(scored.score, reasons)


@asynccontextmanager
async def open_task_host(
    config: RolloutConfig, tasks: Sequence[Task] | None = None
) -> AsyncGenerator[TaskHost]:
    """Open the tasks of a rollout's settings, with their tools, for agents of other frameworks.

    See docs/interop.md.

    :param tasks: tasks to use instead of those of the settings.
    :raises ConfigurationError: if a setting can't be used.
    """
    assignment = assign(config, tasks)
    if needs_judge(assignment.metric, assignment.options):
        raise ConfigurationError(
            f"evaluation_metric: {assignment.metric} needs a judge model, and tasks are served without one; set another"
        )
    everything_verified = assignment.metric == VERIFIER
    metric = None if everything_verified else make_metric(assignment.metric, options=assignment.options)
    settings, broken = sandbox_settings(config)
    async with Supervisor(name="task host", intensity=3, period=60) as supervisor:
        try:
            sandbox = await open_supervised(supervisor, "servers", partial(Sandbox, settings))
        except ToolFailure as failure:
            raise ConfigurationError(f"sandbox: {failure.message}") from None
        tools = (await choose_tools(sandbox, config, broken)).tools
        sandboxes = SandboxPool(sandbox, tools, most=config.max_sandboxes, ahead=0, wanted=0)
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
        await start_child(supervisor, spec)
        opens = partial(
            open_task_verifiers,
            assignment.verified,
            sandbox,
            tools,
            settings,
            max_sandboxes=config.max_sandboxes,
        )
        verifiers = await open_supervised(supervisor, "task verifiers", opens)
        # An error of the caller stays what it is, without a group around it.
        raised: Exception | None = None
        async with anyio.create_task_group() as group:
            host = TaskHost(
                assignment,
                tools,
                metric,
                sandboxes,
                verifiers,
                group,
                max_sandboxes=config.max_sandboxes,
                limit=config.max_observation_chars,
            )
            try:
                yield host
            except Exception as error:  # Raised again below.
                raised = error
            group.cancel_scope.cancel()
        if raised is not None:
            raise raised
