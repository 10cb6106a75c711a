"""The sandbox that a programmer holds."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, cast

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._aliases import canonical_backend
from agentflow.sandbox._batch import Call, run_batch
from agentflow.sandbox._opening import Target, door_to, settings_for
from agentflow.sandbox._own_session import OwnSession, SessionInfo
from agentflow.sandbox._tool_host import Door, failed
from mcp_servers import BACKENDS, Backend, Tool, ToolResult
from mcp_servers.core import ProgressSink
from runtimes import Runtime

__all__ = ["Sandbox"]


logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""A tool with a timeout of its own ends what it runs and says what there was; this much later it is given up."""


class Sandbox:
    """One session over its backends: tools that share a workspace and keep their state, and can be forked.

    ::

        async with Sandbox() as sandbox:
            result = await sandbox.execute("bash:run", {"command": "echo hi"})

    `Sandbox()` has every backend in this process, `Sandbox("http://host:18890", token=...)` those of a server,
    `Sandbox("sandbox.yaml")` what a settings file says. Nothing is started before it is needed. All methods
    may be called at the same time from many tasks of one event loop.

    A call that fails is a result that is not `ok`; what concerns the sandbox itself raises `ToolFailure`.
    """

    def __init__(
        self,
        target: Target = None,
        *,
        token: str | None = None,
        backends: Sequence[str | Backend] | None = None,
        runtime: Runtime | None = None,
        timeout: float | None = None,
        auto_start: bool | None = None,
    ) -> None:
        """Describe it; it starts with `async with`, `start` or the first call.

        :param target: a server's address, a settings file or settings.
        :param token: the server's bearer token.
        :param backends: names of backends and backends of your own; without it all there are.
        :param runtime: a runtime that is running, instead of the one that all sandboxes of this process share.
        :param timeout: seconds for a call that names none of its own.
        :param auto_start: start a server on this machine if none answers at the address; it stops with this.
        :raises ConfigurationError: if something of it can't be used, in one line.
        """
        settings = settings_for(target, token=token, auto_start=auto_start)
        self._describe(door_to(settings, backends, runtime), settings.timeout if timeout is None else timeout)

    def _describe(self, door: Door, timeout: float | None) -> None:
        self.left_behind: tuple[str, ...] = ()
        """Of a fork: one line for each thing that could not be carried over."""
        self._door = door
        self._timeout = timeout
        self._turn = anyio.Lock()
        self._holding = False
        self._started = False
        self._closed = False
        self._session = OwnSession(door)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and self._holding:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    async def start(self) -> None:
        """Connect, and start what the settings want warm. Fine if it has started.

        :raises ToolFailure: `unavailable`, if the server can't be reached; `session_not_found` after `close`.
        """
        if self._started and not self._closed:
            return
        async with self._turn:
            if self._closed:
                raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, "this sandbox is closed.")
            if not self._holding:
                self._door.hold()
                self._holding = True
            if not self._started:
                await self._door.open()
                self._started = True

    async def close(self) -> None:
        """End the session: what runs is stopped, its files are deleted. Forks go on. Fine if it is closed."""
        if self._closed:
            return
        self._closed = True
        # Shielded: whoever is cancelled while closing must not leave processes or files behind.
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if self._holding:
                    await self._session.end()
                    await self._door.release()
                    self._holding = False

    async def execute(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressSink | None = None,
    ) -> ToolResult:
        """Call a tool, once. The session is made at the first call that needs it.

        :param tool: `bash:run`, also written `bash_run`; an alias of the documentation; a verb of which there is one.
        :param timeout: seconds after which what runs is killed; the result says what there was until then.
        :param on_progress: is given the progress that the tool reports; must not block.

        Never raises for what goes wrong with the call: see `result.error.kind`. Cancelling kills what it runs.
        """
        try:
            if not self._started or self._closed:
                await self.start()
            found = self._door.names_for([tool]).find(tool)
            session = await self._session.handle() if found.stateful else None
        except ToolFailure as failure:
            return failed(failure)
        given = dict(arguments or {})
        limit = self._timeout if timeout is None else timeout
        if limit is not None and _ends_itself(found):
            given.setdefault("timeout", limit)
            limit += GRACE_SECONDS
        progress = None if on_progress is None else partial(_tell, on_progress)
        return await self._door.call(found, given, session=session, timeout=limit, progress=progress)

    async def execute_batch(
        self, calls: Sequence[Call], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[ToolResult]:
        """Make several calls, one after the other or all at once; a result for each, in their order.

        :param calls: `("bash:run", {"command": "ls"})`, or `{"tool": ..., "arguments": ..., "timeout": ...}`.
        :param stop_on_error: calls after the first failed one are not made; their results are `cancelled`.
        :raises ConfigurationError: if both are asked for, or a call can't be read.
        """
        return await run_batch(self.execute, calls, parallel=parallel, stop_on_error=stop_on_error)

    async def tools(self, patterns: str | Sequence[str] = "*") -> list[Tool]:
        """The definitions of tools: schemas, `tool.function()` for OpenAI-style calls, `tool.prompt()` as text.

        :param patterns: one or several of: a name, an alias, a backend, a pattern such as `bash:*` or `web_*`.
        :raises ToolFailure: `tool_not_found`, for a pattern that means no tool.
        """
        await self.start()
        return [
            _without_session(tool)
            for tool in self._door.names_for([patterns] if isinstance(patterns, str) else patterns).select(
                patterns
            )
            if tool.backend != "session"
        ]

    async def warmup(self, *backends: str) -> None:
        """Start backends before they are needed; without names all of them. A server starts its own as it was told to.

        :raises ToolFailure: if there is no such backend, or it can't be started.
        """
        await self.start()
        names = [canonical_backend(name) for name in backends]
        await self._door.warmup(names or dict.fromkeys(tool.backend for tool in await self.tools()))

    async def create_session(
        self,
        backends: str | Sequence[str] | Mapping[str, Mapping[str, object]],
        settings: Mapping[str, object] | None = None,
    ) -> list[SessionInfo]:
        """Make backends live now, with their settings, instead of at first use. New settings begin anew.

        :param backends: a name, several, or a mapping from names to their settings.
        :param settings: the settings, for one backend.
        :raises ToolFailure: if there is no such backend, or it can't be made live.
        """
        await self.start()
        wanted = _settings_by_backend(backends, settings)
        await self._door.warmup(wanted)
        await self._session.add(wanted)
        return await self._session.info()

    async def destroy_session(self, *backends: str) -> None:
        """End backends in the session; without names the whole session: the next call begins a fresh one."""
        await self.start()
        if backends:
            await self._session.remove([canonical_backend(name) for name in backends])
        else:
            await self._session.end()

    async def list_sessions(self) -> list[SessionInfo]:
        """The backends that are live in this sandbox."""
        await self.start()
        return await self._session.info()

    async def refresh_sessions(self) -> list[SessionInfo]:
        """Keep the session from ending for want of use."""
        await self.start()
        await self._session.refresh()
        return await self._session.info()

    async def read(self, uri: str) -> bytes:
        """What a link in a result's `parts` leads to: an output kept whole, a picture.

        :raises ToolFailure: `not_found`, if it is not kept, or no longer.
        """
        await self.start()
        return await self._door.read(uri)

    async def fork(self) -> "Sandbox":
        """An independent sandbox with a copy of everything live: files, variables, shells. To be closed by itself.

        Waits for the calls that run. What can't be carried stands in the fork's `left_behind`.

        :raises ToolFailure: `cannot_fork`, if the live state can't be copied; this sandbox goes on.
        """
        await self.start()
        self._door.hold()
        try:
            session, left_behind = await self._session.fork()
        except BaseException:
            await self._door.release()
            raise
        forked = Sandbox.__new__(Sandbox)
        forked._describe(self._door, self._timeout)
        forked._session = session
        forked._holding = forked._started = True
        forked.left_behind = left_behind
        return forked


def _tell(listener: ProgressSink, done: float, total: float | None, message: str | None) -> None:
    try:
        listener(done, total, message)
    except Exception:  # boundary: a listener's trouble is not the call's
        logger.exception("a progress listener failed")


def _ends_itself(tool: Tool) -> bool:
    """One of our own that takes a timeout, in seconds; what others mean by theirs is unknown."""
    return tool.backend in BACKENDS and "timeout" in cast(
        "dict[str, object]", tool.input_schema.get("properties", {})
    )


def _without_session(tool: Tool) -> Tool:
    """The tool as it is called here: the sandbox names the session."""
    if not tool.stateful:
        return tool
    properties = cast("dict[str, object]", tool.input_schema.get("properties", {}))
    own = {name: schema for name, schema in properties.items() if name != "session"}
    return replace(tool, input_schema={**tool.input_schema, "properties": own})


def _settings_by_backend(
    backends: str | Sequence[str] | Mapping[str, Mapping[str, object]], settings: Mapping[str, object] | None
) -> dict[str, Mapping[str, object]]:
    if isinstance(backends, Mapping):
        return {canonical_backend(name): own for name, own in backends.items()}
    names = [backends] if isinstance(backends, str) else backends
    return {canonical_backend(name): settings or {} for name in names}
