"""Blocking variant of the sandbox."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from threading import Lock, Thread
from typing import ParamSpec, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._sandbox import Call, Sandbox, SessionInfo, Target
from mcp_servers import Backend, Tool, ToolResult
from mcp_servers.core import ProgressSink

P = ParamSpec("P")
T = TypeVar("T")


class _SharedLoop:
    """Event loop in its own thread, shared by all blocking sandboxes and closed with the last one.

    anyio's provider waits for its thread when it is collected, so a program that forgets to close a sandbox never ends.
    This one is dropped with the program, and the sandbox's processes end because their client is gone.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._thread: Thread | None = None
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                started = Future[BlockingPortal]()
                self._thread = Thread(target=anyio.run, args=(_serve, started), daemon=True)
                self._thread.start()
                self._portal = started.result()
            self._users += 1
            return self._portal

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._portal is None or self._thread is None:
                return
            portal, thread = self._portal, self._thread
            self._portal = self._thread = None
        portal.start_task_soon(portal.stop)
        thread.join()


async def _serve(started: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()


_loop = _SharedLoop()


class SyncSandbox:
    """`Sandbox` for code without `await`; it also works inside a running loop, as in a notebook.

    ::

        with SyncSandbox() as sandbox:
            result = sandbox.execute("bash:run", {"command": "echo hi"})

    Methods may be called from many threads. Interrupting one (Ctrl-C) kills the process it runs.
    """

    def __init__(
        self,
        target: Target = None,
        *,
        token: str | None = None,
        backends: Sequence[str | Backend] | None = None,
        timeout: float | None = None,
        auto_start: bool | None = None,
    ) -> None:
        """Create it with the arguments of `Sandbox`."""
        self._describe(
            Sandbox(target, token=token, backends=backends, timeout=timeout, auto_start=auto_start)
        )

    def _describe(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """In a fork: one line for each thing that was not copied."""
        return self._sandbox.left_behind

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """See `Sandbox.start`."""
        if self._portal is None:
            self._portal = self._stack.enter_context(_loop)
        try:
            self._call(self._sandbox.start)
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """See `Sandbox.close`."""
        if self._portal is not None:
            try:
                self._call(self._sandbox.close)
            finally:
                self._leave()

    def execute(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressSink | None = None,
    ) -> ToolResult:
        """See `Sandbox.execute`. `on_progress` is called in the loop's thread."""
        return self._call(self._sandbox.execute, tool, arguments, timeout=timeout, on_progress=on_progress)

    def execute_batch(
        self, calls: Sequence[Call], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[ToolResult]:
        """See `Sandbox.execute_batch`."""
        return self._call(self._sandbox.execute_batch, calls, parallel=parallel, stop_on_error=stop_on_error)

    def tools(self, patterns: str | Sequence[str] = "*") -> list[Tool]:
        """See `Sandbox.tools`."""
        return self._call(self._sandbox.tools, patterns)

    def warmup(self, *backends: str) -> None:
        """See `Sandbox.warmup`."""
        self._call(self._sandbox.warmup, *backends)

    def create_session(
        self,
        backends: str | Sequence[str] | Mapping[str, Mapping[str, object]],
        settings: Mapping[str, object] | None = None,
    ) -> list[SessionInfo]:
        """See `Sandbox.create_session`."""
        return self._call(self._sandbox.create_session, backends, settings)

    def destroy_session(self, *backends: str | Sequence[str]) -> None:
        """See `Sandbox.destroy_session`."""
        self._call(self._sandbox.destroy_session, *backends)

    def list_sessions(self) -> list[SessionInfo]:
        """See `Sandbox.list_sessions`."""
        return self._call(self._sandbox.list_sessions)

    def refresh_sessions(self) -> list[SessionInfo]:
        """See `Sandbox.refresh_sessions`."""
        return self._call(self._sandbox.refresh_sessions)

    def read(self, uri: str) -> bytes:
        """See `Sandbox.read`."""
        return self._call(self._sandbox.read, uri)

    def fork(self) -> "SyncSandbox":
        """See `Sandbox.fork`."""
        forked = SyncSandbox.__new__(SyncSandbox)
        forked._describe(self._call(self._sandbox.fork))
        forked._portal = forked._stack.enter_context(_loop)
        return forked

    def _call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._portal is None:
            raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, "this sandbox is not open.")
        scopes: list[anyio.CancelScope] = []

        async def run() -> T:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                return await method(*args, **kwargs)
            raise CancelledError

        def stop() -> None:
            for scope in scopes:
                scope.cancel()

        try:
            return self._portal.start_task_soon(run).result()
        except BaseException:
            # An interrupt may arrive during the hand-over, before there is a future to cancel.
            self._portal.start_task_soon(stop)
            raise

    def _leave(self) -> None:
        self._portal = None
        self._stack.close()
