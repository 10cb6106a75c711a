"""The tool table, through which every entry point (in-process, MCP) calls tools."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self

import anyio

from agentflow.errors import ConfigurationError, ErrorKind, InstanceGone, ToolFailure
from mcp_servers.core._archive import Archive
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, ProgressSink, ResourceLink, ToolResult, seconds_until_hung
from mcp_servers.core._failures import did_you_mean, failure_of, quoted
from mcp_servers.core._session_tools import SESSIONS, SessionTools
from mcp_servers.core._sessions import DefaultSession, Resource, Session, Sessions, TableLimits, new_handle
from mcp_servers.core._tool import SESSION_ARGUMENT, Tool
from runtimes import Instance, InstanceSpec, Runtime

LOCAL = "local"
"""The principal of callers in the same process or on standard input and output."""


class ToolTable:
    """Backends, their sessions, and the single entry point for tool calls.

    `start` warms the backends up; `close` ends every session and shuts them down. Also an async context manager.
    The caller owns the runtime.

    Example::

        async with ToolTable([Clock()]) as table:
            result = await table.call("clock_now")
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        *,
        runtime: Callable[[], Awaitable[Runtime]] | None = None,
        spec: InstanceSpec | None = None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        limits: TableLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        handles: Callable[[], str] = new_handle,
        archive: Archive | None = None,
    ) -> None:
        """Collect the backends' tools.

        :param runtime: returns the entered runtime; called when an instance is first needed.
        :param spec: the sessions' instances.
        :param settings: settings of the backends by name; those of a session override them.
        :param clock: monotonic seconds, for idle times.
        :param handles: generates session handles.
        :param archive: keeps the files of ended sessions.
        :raises ConfigurationError: if two backends have the same name.
        """
        self.limits = limits or TableLimits()
        """Limits of the table."""
        self.backends: dict[str, Backend] = {}
        """Backends by name."""
        self._runtime = runtime
        self._spec = spec or InstanceSpec()
        self._settings = settings or {}
        self.sessions = Sessions(
            self.backends,
            start_instance=self._start_instance,
            limits=self.limits,
            settings=self._settings,
            clock=clock,
            handles=handles,
            warm_up=self._warm_up,
            archive=archive,
        )
        """The sessions."""
        self._routes: dict[str, tuple[Tool, Backend]] = {}
        self._tools: list[Tool] = []
        self._discovered: dict[Backend, tuple[Tool, ...]] = {}
        self._edition = 0
        self._cold: dict[str, anyio.Lock] = {}
        for backend in (*backends, SessionTools(self.sessions)):
            self.add(backend, cold=True)

    def add(self, backend: Backend, *, cold: bool = False) -> None:
        """Add a backend and its tools.

        :param cold: warm it up on first use; otherwise it must be warm already.
        :raises ConfigurationError: if its name is empty or taken.
        """
        if not backend.name or backend.name in self.backends:
            reason = "already exists" if backend.name else "has no name"
            raise ConfigurationError(
                f"backend {backend.name or type(backend).__name__!r} {reason}: give each backend a unique name"
            )
        self.backends[backend.name] = backend
        if cold:
            self._cold[backend.name] = anyio.Lock()
        self._add_backend(backend)
        self._edition += 1

    def _add_backend(self, backend: Backend) -> None:
        settings = self._settings.get(backend.name, {})
        unusable, hidden = backend.unusable(settings), backend.hidden(settings)
        if backend.discovers:
            self._discovered[backend] = backend.tools
        for tool in backend.tools:
            if tool.verb in hidden:
                continue
            if reason := unusable.get(tool.verb):
                tool = replace(tool, unusable=reason)
            self._tools.append(tool)
            self._routes[tool.name] = self._routes[tool.route] = (tool, backend)

    @property
    def edition(self) -> int:
        """A number that changes whenever the tools change."""
        self._renew()
        return self._edition

    def _renew(self) -> None:
        if any(backend.tools is not taken for backend, taken in self._discovered.items()):
            self._tools, self._routes = [], {}
            for backend in self.backends.values():
                self._add_backend(backend)
            self._edition += 1

    @property
    def tools(self) -> list[Tool]:
        """All tools in the order of their backends; the session tools come last."""
        self._renew()
        return list(self._tools)

    def tool(self, name: str) -> Tool:
        """Return the tool of that name (`bash_run`) or route (`bash:run`).

        :raises ToolFailure: `tool_not_found`; the message suggests the closest name.
        """
        return self._route(name)[0]

    @staticmethod
    def unknown(name: str, names: Iterable[str]) -> ToolFailure:
        """Return the failure for a call to an unknown tool."""
        return ToolFailure(ErrorKind.TOOL_NOT_FOUND, f"no tool {quoted(name)}.{did_you_mean(name, names)}")

    async def start(self, backends: Iterable[str] | None = None) -> None:
        """Warm backends up, one after the other; the others are warmed up on first use.

        :param backends: names; all backends by default.
        """
        for name in self.backends if backends is None else backends:
            await self._warm_up(self.backends[name])

    async def close(self) -> None:
        """End every session, then shut every backend down, in reverse order."""
        with anyio.CancelScope(shield=True):
            await self.sessions.close()
            for backend in reversed(self.backends.values()):
                if backend.name not in self._cold:
                    await backend.shutdown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def kept(self, principal: str) -> list[ResourceLink]:
        """Return links to the resources of the principal's sessions."""
        return list(self.sessions.links(principal))

    async def read(self, uri: str, principal: str) -> Resource | None:
        """Return a resource kept by one of the principal's sessions, or `None`."""
        return self.sessions.resource(uri, principal)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        principal: str = LOCAL,
        session: "str | Session | DefaultSession | None" = None,
        timeout: float | None = None,
        progress: ProgressSink | None = None,
    ) -> ToolResult:
        """Call a tool. An error of the call is not raised but returned as a typed error in the result.

        :param name: `bash_run` or `bash:run`.
        :param session: session of a stateful tool if `arguments` contain no `session`.
        :param timeout: maximum seconds for the whole call; its programs are then killed.
        :param progress: receives the tool's progress.

        Cancelling the caller cancels the call and kills its programs.
        """
        context: CallContext | None = None
        try:
            tool, backend = self._route(name)
            if tool.unusable:
                raise ToolFailure(ErrorKind.UNAVAILABLE, f"{tool.name}: {tool.unusable}")
            if backend.name in self._cold:
                await self._warm_up(backend)
            seconds = _least(timeout, self.limits.call_seconds)
            deadline = None if seconds is None else anyio.current_time() + seconds
            context = CallContext(principal, deadline, progress)
            values = dict(arguments) if arguments else {}
            handle = values.pop(SESSION_ARGUMENT, None) if tool.stateful else None
            keywords = tool.bind(values)
            if tool.context_parameter is not None:
                keywords[tool.context_parameter] = context
            spare = self.limits.hang_seconds if seconds is None else None
            timeouts = values.get("timeout"), self._settings.get(backend.name, {}).get("timeout")
            hung = seconds_until_hung(spare, self._spec.limits.wall_seconds, *timeouts)
            run = self._run(tool, backend, keywords, principal, session if handle is None else handle, hung)
            value = await (run if deadline is None else _until(deadline, tool, run))
            return ToolResult(True, tool.dump(value), None, tuple(context.parts)).without_secrets()
        except (
            Exception
        ) as error:  # boundary: any exception of a backend becomes a typed failure of this call
            parts = tuple(context.parts) if context else ()
            return ToolResult.failed(failure_of(error, name), parts).without_secrets()

    async def _run(
        self,
        tool: Tool,
        backend: Backend,
        keywords: dict[str, object],
        principal: str,
        session_of: object,
        hung: float | None,
    ) -> object:
        if tool.session_parameter is None:
            return await _unless_hung(hung, tool, keywords)
        session = await self._session(tool, principal, session_of)
        keywords[tool.session_parameter] = session
        if tool.interjects:
            if backend.name not in session.live and backend.name != SESSIONS:
                await self.sessions.make_live(session, backend)
            return await _unless_hung(hung, tool, keywords)
        await session.gate.enter()
        try:
            with session.cancelled_at_end():
                session.check_alive()
                if backend.name not in session.live:
                    await self.sessions.make_live(session, backend)
                return await _unless_hung(hung, tool, keywords)
        except InstanceGone:
            session.lost = True
            raise
        finally:
            session.gate.leave()
            self.sessions.touch(session)
            if session.lost:
                await self.sessions.end(session)

    async def _session(self, tool: Tool, principal: str, session_of: object) -> Session:
        if isinstance(session_of, DefaultSession):
            return await session_of.get()
        handle = session_of.handle if isinstance(session_of, Session) else session_of
        if handle is None:
            message = (
                "name a session: this connection has no session of its own. Start one with session_start."
            )
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool.name}: {message}")
        if not isinstance(handle, str):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool.name}: argument 'session' must be a string.")
        return self.sessions.find(handle, principal)

    def _route(self, name: str) -> tuple[Tool, Backend]:
        self._renew()
        route = self._routes.get(name)
        if route is None:
            raise self.unknown(name, [tool.route if ":" in name else tool.name for tool in self.tools])
        return route

    async def _warm_up(self, backend: Backend) -> None:
        lock = self._cold.get(backend.name)
        if lock is None:
            return
        async with lock:
            if backend.name in self._cold:
                backend.start_instance = self._start_instance
                backend.configure(self._settings.get(backend.name, {}))
                await backend.warmup()
                del self._cold[backend.name]

    async def _start_instance(self, mounts: Mapping[str, str] | None = None) -> Instance:
        if self._runtime is None:
            message = "this server has no runtime, so sessions cannot run programs."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        runtime = await self._runtime()
        if not mounts:
            return await runtime.start(self._spec)
        return await runtime.start(replace(self._spec, mounts={**self._spec.mounts, **mounts}))


async def _until(deadline: float, tool: Tool, run: Awaitable[object]) -> object:
    with anyio.CancelScope(deadline=deadline) as scope:
        return await run
    assert scope.cancelled_caught
    raise ToolFailure(ErrorKind.TIMEOUT, f"{tool.name}: the call timed out; its programs were stopped.")


async def _unless_hung(seconds: float | None, tool: Tool, keywords: Mapping[str, object]) -> object:
    """Return the result of a tool, whose time begins once its session is free."""
    if seconds is None:
        return await tool.invoke(**keywords)
    with anyio.move_on_after(seconds):
        return await tool.invoke(**keywords)
    raise ToolFailure(
        ErrorKind.TIMEOUT, f"{tool.name}: no answer within {seconds:g} s (`hang_seconds`); it was stopped."
    )


def _least(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
