"""Verification of the tasks of a file after an agent's attempt: the verifiers, each with sandboxes that no agent sees."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._typeguards import is_object
from agentflow.engine import BranchSandboxes, Prepare
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings, Tool
from agentflow.scoring import Scored
from agentflow.tasks._contract import TaskAttempt, TaskVerifier, VerifiableTask
from agentflow.tasks._data_programs import DataPrograms
from agentflow.tasks._desktop import DesktopState
from agentflow.tasks._household import HouseholdState
from agentflow.tasks._sql_copies import SqlCopies
from agentflow.tasks._state_tasks import StateVerifier
from agentflow.tasks._states import StateReader
from agentflow.tasks._terminal import TerminalState
from agentflow.tasks._verifiers import AnswerVerifier, ProgramVerifier, QueryVerifier
from agentflow.team import call_tool
from agentflow.trace import (
    Action,
    ActionOutcome,
    Episode,
    Failure,
    MemoryBlobStore,
    Task,
    TaskVerdict,
)
from mcp_servers import load_backend

VERDICT: Final = "verdict"
"""Journal key of the verdict of an episode."""
UNVERIFIABLE: Final = "unverifiable"
"""Kind of the failure of an attempt that could not be verified."""
AGENT: Final = "agent"
"""Name of an agent's attempt."""
_WORKERS: Final = 16
"""Databases and copies that are open at once."""

Solve: TypeAlias = Callable[[Task, Sandbox, Page, Prepare | None], Awaitable[Episode]]
"""Works on a task in a sandbox; the last argument brings another session into the task's initial state."""


class StateKind(Struct, frozen=True):
    """Kind of tasks of state, and the tools that it needs."""

    reader: Callable[[], StateReader]
    """Makes the reader of its states."""
    acts: str
    """Tool with which the agent acts."""
    reads: str
    """Tool that reads the state."""
    fix: str
    """Advice if the second tool is missing."""


STATE_KINDS: Final[Mapping[str, StateKind]] = {
    "gui": StateKind(DesktopState, "vm_click", "vm_evaluate", "set resource_init_configs.vm.evaluate=true"),
    "terminal": StateKind(TerminalState, "bash_run", "bash_inspect", "update the tool server"),
    "embodied": StateKind(
        HouseholdState, "world_act", "world_inspect", "set resource_init_configs.world.evaluate=true"
    ),
}
"""Kinds of tasks of state by name."""


def verifiable_task(task: Task) -> VerifiableTask | None:
    """Return the verified task of a row of `tasks.jsonl`; `None` if the row is a question with an answer.

    See docs/tasks.md.

    :raises ConfigurationError: one line, if the row can't be used.
    """
    stored_task = task.metadata.get("task")
    if not is_object(stored_task):
        return None
    try:
        verifiable = msgspec.convert({"wrong": [], **stored_task}, VerifiableTask)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"task {task.id}: can't be verified: {error}; write the file again, or set evaluation_metric"
        ) from None
    kinds = [*STATE_KINDS, AnswerVerifier.name, ProgramVerifier.name, QueryVerifier.name]
    if verifiable.kind not in kinds:
        raise ConfigurationError(
            f"task {task.id}: {verifiable.kind} has no verifier here: use {', '.join(kinds)}, or set evaluation_metric"
        )
    return verifiable


def rollout_task(task: VerifiableTask) -> Task:
    """Return a verified task as a rollout asks it.

    See docs/tasks.md.
    """
    metadata = {"task": msgspec.to_builtins(replace(task, wrong=()))}
    return Task(index=0, id=task.id, question=task.instruction, kwargs=task.setup.kwargs, metadata=metadata)


def scored_verdict(verdict: TaskVerdict) -> Scored:
    """Return a verdict as a score.

    >>> scored_verdict(TaskVerdict(True)).score
    1.0
    """
    if verdict.error:
        return Scored(0.0, failure=Failure(UNVERIFIABLE, verdict.error))
    return Scored(float(verdict.passed), "; ".join(verdict.reasons))


class TaskVerifiers:
    """Verifiers of the kinds in a file of tasks. `open_task_verifiers` makes them."""

    def __init__(self, kinds: Mapping[str, TaskVerifier]) -> None:
        """:param kinds: verifiers by the name of their kind."""
        self._kinds = kinds

    @property
    def of_state(self) -> tuple[str, ...]:
        """Names of the kinds whose initial state must be prepared."""
        return tuple(name for name, kind in self._kinds.items() if isinstance(kind, StateVerifier))

    async def judge(self, task: Task, answer: str) -> TaskVerdict | None:
        """Verify an answer alone; `None` if the task has no verifier.

        :raises RunStopped: if the run can't continue.
        """
        verifiable = verifiable_task(task) if self._kinds else None
        if verifiable is None:
            return None
        return await self._kinds[verifiable.kind].verify(verifiable, TaskAttempt(name=AGENT, answer=answer))

    async def run(self, task: Task, sandbox: Sandbox, page: Page, solve: Solve) -> Episode:
        """Have an agent work on a task, and return the episode with its verdict, if the task has a verifier.

        The sandbox is brought into the initial state first. The verdict is recorded on the page, unless the verifier
        failed; the state is read before the sandbox ends. If the episode began in an earlier process, its actions are
        repeated in a sandbox of their own instead.

        :raises ToolFailure: if the initial state can't be reached.
        """
        prepare = self.prepares(task)
        if prepare is not None and VERDICT not in page:
            await prepare(sandbox)
        resumed = any(True for _ in page.keys())  # noqa: SIM118 - a page is no mapping
        episode = await solve(task, sandbox, page, prepare)
        return await self.verify(episode, None if resumed else sandbox, page)

    def prepares(self, task: Task) -> Prepare | None:
        """Return what brings a sandbox into the initial state of a task; `None` if it has none of its own."""
        verifiable = verifiable_task(task) if self._kinds else None
        kind = None if verifiable is None else self._kinds[verifiable.kind]
        return partial(kind.prepare, verifiable) if verifiable and isinstance(kind, StateVerifier) else None

    async def verify(self, episode: Episode, sandbox: Sandbox | None, page: Page) -> Episode:
        """Return an episode with its verdict, if its task has a verifier. The verdict is recorded on the page, unless the
        verifier failed.

        :param sandbox: its sandbox; `None`: its actions are repeated in another one.
        """
        verifiable = verifiable_task(episode.task) if self._kinds else None
        if verifiable is None:
            return episode
        kind = self._kinds[verifiable.kind]
        attempt = TaskAttempt(name=AGENT, answer=episode.answer)
        if isinstance(kind, StateVerifier):
            attempt = replace(attempt, actions=_actions(episode))
        verdict = page.recall(VERDICT, TaskVerdict)
        if verdict is None:
            verdict = await kind.verify(verifiable, attempt, sandbox)
            # A verifier that could not work may work later.
            if not verdict.error:
                await page.record(VERDICT, verdict)
        return replace(episode, verdict=verdict)


def _actions(episode: Episode) -> tuple[Action, ...]:
    return tuple(turn.action for turn in episode.turns if turn.action is not None)


class _DirectExecutor:
    """Calls tools; images are not kept."""

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        return await call_tool(sandbox, action, MemoryBlobStore())


@asynccontextmanager
async def open_task_verifiers(
    kinds: Collection[str],
    sandbox: Sandbox,
    tools: Sequence[Tool],
    settings: SandboxSettings,
    *,
    max_sandboxes: int = 128,
) -> AsyncGenerator[TaskVerifiers]:
    """Open the verifiers of these kinds, and close their sandboxes at the end.

    See docs/tasks.md.

    :param sandbox: sandbox of the run, of which agents get forks.
    :param tools: tools of the agents.
    :param settings: settings of that sandbox, for those that no agent sees.
    :param max_sandboxes: maximum number of concurrent sandboxes in which states are read.
    :raises ConfigurationError: one line, if something that a verifier needs is missing.
    """
    sandboxes = BranchSandboxes(sandbox, tools, max_sandboxes=max_sandboxes)
    async with AsyncExitStack() as stack:
        opened: dict[str, TaskVerifier] = {}
        for name in sorted(kinds):
            if name in STATE_KINDS:
                await check_state_tools(name, sandbox, sandboxes)
                opened[name] = StateVerifier(
                    STATE_KINDS[name].reader(), executor=_DirectExecutor(), sandboxes=sandboxes
                )
            elif name == AnswerVerifier.name:
                opened[name] = AnswerVerifier()
            else:
                opened[name] = await stack.enter_async_context(_answers(name, settings))
        yield TaskVerifiers(opened)


@asynccontextmanager
async def _answers(name: str, settings: SandboxSettings) -> AsyncGenerator[TaskVerifier]:
    sandbox_settings, folder = hidden_settings(name, settings)
    async with Sandbox(sandbox_settings) as sandbox:
        session = SqlCopies(sandbox) if name == QueryVerifier.name else DataPrograms(sandbox, folder)
        try:
            if isinstance(session, SqlCopies):
                await session.prepare()
            yield QueryVerifier(session) if isinstance(session, SqlCopies) else ProgramVerifier(session)
        finally:
            await session.close()


async def check_state_tools(name: str, sandbox: Sandbox, sandboxes: BranchSandboxes) -> None:
    """Check that the tools of a kind of tasks of state are there.

    See docs/tasks.md.

    :raises ConfigurationError: one line, if one is missing.
    """
    kind = STATE_KINDS[name]
    if kind.acts not in sandboxes.tools:
        raise ConfigurationError(f"tasks: {name} needs the tool {kind.acts}; add it to available_tools")
    try:
        await sandbox.tools(kind.reads)
    except ToolFailure:
        raise ConfigurationError(f"tasks: {name} needs the tool {kind.reads}; {kind.fix}") from None


def hidden_settings(name: str, settings: SandboxSettings) -> tuple[SandboxSettings, str]:
    """Return the settings of the sandbox that verifies queries or programs, and the path of the data directory in it.

    See docs/tasks.md.

    :param name: `text2sql` or `data_analysis`.
    :param settings: settings of the agents' sandbox.
    :raises ConfigurationError: one line, if there is nothing to verify on.
    """
    if settings.server_url is not None:
        raise ConfigurationError(
            f"tasks: {name} verifies in sandboxes of its own, without a server; remove sandbox_server_url"
        )
    backend_settings = settings.backend_settings
    if name == QueryVerifier.name:
        if backend_settings.get("sql"):
            copies = {"sql": {**backend_settings["sql"], "writable": True, "workers": _WORKERS}}
            return settings.model_copy(update={"backends": copies}), ""
        raise ConfigurationError(f"tasks: {name} needs a database; set resource_init_configs.sql.databases")
    for backend in ("data", "files"):
        # A backend whose settings can't be used was reported when tools were chosen.
        with suppress(ConfigurationError, ToolFailure):
            options = backend_settings.get(backend, {})
            for path in load_backend(backend).mounts(options, {}) if options else ():
                return settings.model_copy(update={"backends": {"data": {}, backend: options}}), path
    raise ConfigurationError(f"tasks: {name} needs a data directory; set resource_init_configs.data.folder")
