"""The sandbox for programs: one session on a tool host, single calls and batches."""

import logging
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct
from pydantic import SecretStr

from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.actors import together
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox._api_tools import api_backends
from agentflow.sandbox._settings import SandboxSettings
from agentflow.sandbox._tool_host import LocalToolHost, ToolHost, canonical_backend, documented_arguments
from agentflow.settings import load_settings
from agentflow.telemetry import conventions, tool_operation
from mcp_servers import BACKENDS, Backend, TextContent, Tool, ToolResult, load_backend
from mcp_servers.core import ProgressSink, check_runtime, did_you_mean
from runtimes import Runtime

logger = logging.getLogger(__name__)

Target: TypeAlias = str | PathLike[str] | SandboxSettings | None
"""A server's URL, a settings file, settings, or `None` for the defaults."""
GRACE_SECONDS = 5.0
"""Seconds to wait beyond a call's timeout: the tool ends its work first and returns its output."""
END_SECONDS = 30.0
"""Seconds for a session to end; a hanging server must not keep a sandbox from closing."""
Call: TypeAlias = tuple[str, Mapping[str, object]] | Mapping[str, object]
"""`("bash:run", {"command": "ls"})`, or `{"tool": "bash:run", "arguments": {"command": "ls"}, "timeout": 5}`;
the documented names `action` and `params` are accepted, too.
"""

Execute: TypeAlias = Callable[..., Awaitable[ToolResult]]

_KEYS = {
    "tool": "tool",
    "action": "tool",
    "arguments": "arguments",
    "params": "arguments",
    "timeout": "timeout",
}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A backend that is live in a sandbox."""

    backend: str
    """Its name."""
    session: str
    """Handle of its session; all backends of a sandbox share one."""
    running: int
    """Number of calls running in the session."""
    idle_seconds: float
    """Seconds since the session was last used."""


class _Session(Struct):
    session: str


class _SessionState(_Session):
    backends: list[str]
    running: int
    idle_seconds: float


class _SessionList(Struct):
    sessions: list[_SessionState]


class _ForkedSession(_Session):
    left_behind: tuple[str, ...]


class OwnSession:
    """Session that is created at first use and driven by the `session_*` tools, as any client would."""

    def __init__(self, host: ToolHost, handle: str | None = None) -> None:
        self._host = host
        self._handle = handle
        self._lock = anyio.Lock()

    async def handle(self) -> str:
        """Return its handle; create it if necessary."""
        if self._handle is None:
            async with self._lock:
                if self._handle is None:
                    started = await self._call("start", {}, session=None)
                    self._handle = msgspec.convert(started, _Session).session
        return self._handle

    async def add(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Make backends live, each with its settings."""
        await self._call("add", {"settings": settings}, session=await self.handle())

    async def remove(self, backends: Iterable[str]) -> None:
        """Clean up backends."""
        if self._handle is not None:
            await self._call("remove", {"backends": list(backends)}, session=self._handle)

    async def refresh(self) -> None:
        """Reset its idle time."""
        if self._handle is not None:
            await self._call("add", {"settings": {}}, session=self._handle)

    async def end(self) -> None:
        """End it; the next use creates a new one. Does nothing if it has ended, or its server has."""
        async with self._lock:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            try:
                await self._call("end", {}, session=handle, timeout=END_SECONDS)
            except ToolFailure as failure:
                if failure.kind not in (ErrorKind.SESSION_NOT_FOUND, ErrorKind.UNAVAILABLE):
                    raise

    async def info(self) -> list[SessionInfo]:
        """Return the live backends."""
        if self._handle is None:
            return []
        listing = msgspec.convert(await self._call("list", {}, session=None), _SessionList)
        return [
            SessionInfo(backend, state.session, state.running, state.idle_seconds)
            for state in listing.sessions
            if state.session == self._handle
            for backend in state.backends
        ]

    async def fork(self) -> "tuple[OwnSession, tuple[str, ...]]":
        """Return an independent copy, and a line for each thing that was not copied."""
        if self._handle is None:
            return OwnSession(self._host), ()
        forked = msgspec.convert(await self._call("fork", {}, session=self._handle), _ForkedSession)
        return OwnSession(self._host, forked.session), forked.left_behind

    async def _call(
        self, verb: str, arguments: Mapping[str, object], *, session: str | None, timeout: float | None = None
    ) -> dict[str, object]:
        tool = self._host.names.find(f"session_{verb}")
        result = await self._host.call(tool, arguments, session=session, timeout=timeout, progress=None)
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message, result.data)
        return result.data


class Sandbox:
    """One session over its backends: tools that share a workspace, keep their state, and can be forked.

    ::

        async with Sandbox() as sandbox:
            result = await sandbox.execute("bash:run", {"command": "echo hi"})

    `sandbox = await Sandbox()` starts it, too, for notebooks; end it with `await sandbox.close()`.
    `Sandbox()` has every backend in this process, `Sandbox("http://host:18890", token=...)` those of a server, and
    `Sandbox("sandbox.yaml")` follows a settings file. Everything starts at first use. All methods may be called
    concurrently from many tasks of one event loop.

    A failed call is a result that is not `ok`; failures of the sandbox itself raise `ToolFailure`.
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
        """Create a sandbox; it starts with `async with`, `start` or the first call.

        :param target: a server's URL, a settings file or settings.
        :param token: the server's bearer token.
        :param backends: names of backends and `Backend` instances; by default all built-in ones.
        :param runtime: a running runtime, instead of the one that all sandboxes of this process share.
        :param timeout: seconds for a call without its own timeout.
        :param auto_start: start a server on this machine if none answers at the URL; it stops with this sandbox.
        :raises ConfigurationError: if an argument can't be used, in one line.
        """
        settings = _settings_for(target, token=token, auto_start=auto_start)
        self._describe(
            _tool_host_for(settings, backends, runtime), settings.timeout if timeout is None else timeout
        )

    def _describe(self, host: ToolHost, timeout: float | None) -> None:
        self.left_behind: tuple[str, ...] = ()
        """In a fork: one line for each thing that was not copied."""
        self._host = host
        self._timeout = timeout
        self._lock = anyio.Lock()
        self._holding = False
        self._started = False
        self._closed = False
        self._session = OwnSession(host)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and self._holding:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    async def start(self) -> None:
        """Connect, and start the backends that the settings name. Does nothing if it has started.

        :raises ToolFailure: `unavailable`, if the server can't be reached; `session_not_found` after `close`.
        """
        if self._started and not self._closed:
            return
        async with self._lock:
            if self._closed:
                raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, "this sandbox is closed.")
            if not self._holding:
                self._host.retain()
                self._holding = True
            if not self._started:
                await self._host.open()
                self._started = True

    async def close(self) -> None:
        """End the session: its processes are stopped and its files deleted. Forks continue. Does nothing if it is closed."""
        if self._closed:
            return
        self._closed = True
        # Shielded: a cancelled caller must not leave processes or files behind.
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if self._holding:
                    await self._session.end()
                    await self._host.release()
                    self._holding = False

    async def execute(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressSink | None = None,
    ) -> ToolResult:
        """Call a tool, once. The first call that needs a session creates it.

        :param tool: `bash:run`, also written `bash_run`; a documented alias; an unambiguous verb.
        :param timeout: seconds after which the tool's processes are killed; the result has the output so far.
        :param on_progress: receives the progress that the tool reports; must not block.

        Never raises for a failed call: see `result.error.kind`. Cancellation kills the tool's processes.
        """
        try:
            if not self._started or self._closed:
                await self.start()
            found_tool = self._host.names_for([tool]).find(tool)
            session = await self._session.handle() if found_tool.stateful else None
        except ToolFailure as failure:
            return ToolResult.failed(failure)
        call_arguments = documented_arguments(tool, _properties(found_tool), arguments or {})
        limit = self._timeout if timeout is None else timeout
        if limit is not None and _ends_itself(found_tool):
            call_arguments.setdefault("timeout", limit)
            limit += GRACE_SECONDS
        progress = None if on_progress is None else partial(_tell, on_progress)
        with tool_operation(found_tool.name) as operation:
            operation.content(conventions.TOOL_CALL_ARGUMENTS, lambda: call_arguments)
            result = await self._host.call(
                found_tool, call_arguments, session=session, timeout=limit, progress=progress
            )
            operation.content(conventions.TOOL_CALL_RESULT, lambda: content_of(result))
            if result.error is not None:
                operation.failed(result.error.kind)
        return result

    async def execute_batch(
        self, calls: Sequence[Call], *, parallel: bool = False, stop_on_error: bool = False
    ) -> list[ToolResult]:
        """Make several calls, sequentially or concurrently; return their results in order.

        :param calls: `("bash:run", {"command": "ls"})`, or `{"tool": ..., "arguments": ..., "timeout": ...}`.
        :param stop_on_error: skip the calls after the first failure; their results are `cancelled`.
        :raises ConfigurationError: if both options are set, or a call is malformed.
        """
        return await run_batch(self.execute, calls, parallel=parallel, stop_on_error=stop_on_error)

    async def tools(self, patterns: str | Sequence[str] = "*") -> list[Tool]:
        """Return tool definitions: schemas, `tool.function()` for OpenAI-style calls, `tool.prompt()` as text.

        :param patterns: names, aliases, backends, or patterns such as `bash:*` and `web_*`.
        :raises ToolFailure: `tool_not_found`, for a pattern without a match.
        """
        await self.start()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        selected = self._host.names_for(patterns).select(patterns)
        return [_without_session(tool) for tool in selected if tool.backend != "session"]

    async def warmup(self, *backends: str) -> None:
        """Start backends early; by default all of them. A server starts its backends by its own settings.

        :raises ToolFailure: if there is no such backend, or it can't be started.
        """
        await self.start()
        names = [canonical_backend(name) for name in backends]
        await self._host.warmup(names or dict.fromkeys(tool.backend for tool in await self.tools()))

    async def create_session(
        self,
        backends: str | Sequence[str] | Mapping[str, Mapping[str, object]],
        settings: Mapping[str, object] | None = None,
    ) -> list[SessionInfo]:
        """Make backends live now, with their settings, instead of at first use. New settings replace the old state.

        :param backends: a name, several, or a mapping from names to their settings.
        :param settings: the settings of a single backend.
        :raises ToolFailure: if there is no such backend, or it can't be made live.
        """
        await self.start()
        by_backend = _settings_by_backend(backends, settings)
        await self._host.warmup(by_backend)
        await self._session.add(by_backend)
        return await self._session.info()

    async def destroy_session(self, *backends: str | Sequence[str]) -> None:
        """End backends of the session, given as names or lists of names; by default the whole session.

        After that the next call creates a new one.
        """
        await self.start()
        if backends:
            lists = [[names] if isinstance(names, str) else names for names in backends]
            await self._session.remove([canonical_backend(name) for names in lists for name in names])
        else:
            await self._session.end()

    async def list_sessions(self) -> list[SessionInfo]:
        """Return the live backends."""
        await self.start()
        return await self._session.info()

    async def refresh_sessions(self) -> list[SessionInfo]:
        """Reset the session's idle time."""
        await self.start()
        await self._session.refresh()
        return await self._session.info()

    async def read(self, uri: str) -> bytes:
        """Return the target of a link in a result's `parts`: a full output, an image.

        :raises ToolFailure: `not_found`, if it is not stored (any more).
        """
        await self.start()
        return await self._host.read(uri)

    async def fork(self) -> "Sandbox":
        """Return an independent sandbox with a copy of everything live: files, variables, shells. Close it separately.

        Waits for running calls. Anything that can't be copied is listed in the fork's `left_behind`.

        :raises ToolFailure: `cannot_fork`, if the live state can't be copied; this sandbox continues.
        """
        await self.start()
        self._host.retain()
        try:
            session, left_behind = await self._session.fork()
        except BaseException:
            await self._host.release()
            raise
        forked = Sandbox.__new__(Sandbox)
        forked._describe(self._host, self._timeout)
        forked._session = session
        forked._holding = forked._started = True
        forked.left_behind = left_behind
        return forked


def content_of(result: ToolResult) -> dict[str, object]:
    """Return the data and texts of a result, without its images. See docs/tracing.md."""
    texts = [part.text for part in result.parts if isinstance(part, TextContent)]
    error = None if result.error is None else result.error.message
    return {"data": result.data, "texts": texts, "error": error}


def _tell(listener: ProgressSink, done: float, total: float | None, message: str | None) -> None:
    try:
        listener(done, total, message)
    except Exception:  # boundary: an error of the listener does not belong to the call
        logger.exception("a progress listener failed")


def _ends_itself(tool: Tool) -> bool:
    """Return whether a tool of ours takes a timeout in seconds; units of external tools are unknown."""
    return tool.backend in BACKENDS and "timeout" in _properties(tool)


def _without_session(tool: Tool) -> Tool:
    """Return the tool without its `session` argument, which the sandbox fills in."""
    if not tool.stateful:
        return tool
    properties = {name: schema for name, schema in _properties(tool).items() if name != "session"}
    schema = {**tool.input_schema, "properties": properties}
    required = schema.pop("required", None)
    if is_list(required) and (others := [name for name in required if name != "session"]):
        schema["required"] = others
    return replace(tool, input_schema=schema)


def _properties(tool: Tool) -> dict[str, object]:
    """Return the schemas of a tool's arguments."""
    properties = tool.input_schema.get("properties")
    return properties if is_object(properties) else {}


def _settings_by_backend(
    backends: str | Sequence[str] | Mapping[str, Mapping[str, object]], settings: Mapping[str, object] | None
) -> dict[str, Mapping[str, object]]:
    if isinstance(backends, Mapping):
        return {canonical_backend(name): backend_settings for name, backend_settings in backends.items()}
    names = [backends] if isinstance(backends, str) else backends
    return {canonical_backend(name): settings or {} for name in names}


async def run_batch(
    execute: Execute, calls: Sequence[Call], *, parallel: bool, stop_on_error: bool
) -> list[ToolResult]:
    """Return a result for each call, in order. See `Sandbox.execute_batch`."""
    if parallel and stop_on_error:
        raise ConfigurationError(
            "execute_batch: choose parallel or stop_on_error: calls at once have no order to stop in"
        )
    steps = [_bound(execute, call, number) for number, call in enumerate(calls)]
    if parallel:
        return await together(steps)
    results: list[ToolResult] = []
    for number, step in enumerate(steps):
        results.append(await step())
        if stop_on_error and not results[-1].ok:
            skipped = ToolFailure(ErrorKind.CANCELLED, f"not called: call {number} of the batch failed.")
            return results + [ToolResult.failed(skipped) for _ in steps[number + 1 :]]
    return results


def _bound(execute: Execute, call: Call, number: int) -> Callable[[], Awaitable[ToolResult]]:
    """Return a function that makes a call.

    :raises ConfigurationError: if the call is malformed.
    """
    if isinstance(call, tuple):
        return partial(execute, call[0], call[1], timeout=None)
    unknown = [key for key in call if key not in _KEYS]
    if unknown:
        raise ConfigurationError(
            f"call {number} of the batch: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], _KEYS)}"
        )
    parts = {_KEYS[key]: value for key, value in call.items() if value is not None}
    tool, arguments, timeout = parts.get("tool"), parts.get("arguments", {}), parts.get("timeout")
    if not (isinstance(tool, str) and is_mapping(arguments) and isinstance(timeout, int | float | None)):
        raise ConfigurationError(
            f"call {number} of the batch: needs a 'tool', and may have 'arguments' and a 'timeout'"
        )
    return partial(execute, tool, arguments, timeout=timeout)


def _settings_for(target: Target, *, token: str | None, auto_start: bool | None) -> SandboxSettings:
    """Return the settings of a target.

    :raises ConfigurationError: if a settings file can't be used.
    """
    if isinstance(target, SandboxSettings):
        settings = target
    elif isinstance(target, str) and target.startswith(("http://", "https://")):
        settings = SandboxSettings(server_url=target)
    elif target is not None:
        settings = load_settings(SandboxSettings, str(target))
    else:
        settings = SandboxSettings()
    changes: dict[str, object] = {}
    if token is not None:
        changes["token"] = SecretStr(token)
    if auto_start is not None:
        changes["auto_start"] = auto_start
    return settings.model_copy(update=changes)


def _tool_host_for(
    settings: SandboxSettings, backends: Sequence[str | Backend] | None, runtime: Runtime | None
) -> ToolHost:
    """Return the tool host, not open yet.

    :raises ConfigurationError: for an unknown backend, or a contradictory combination.
    """
    if settings.server_url is None:
        check_runtime(settings.runtime)
        chosen = _backends(settings, backends)
        loaded = {name: backend for name, backend in chosen.items() if backend is not None}
        return LocalToolHost(
            _by_own_names(settings, loaded),
            [*loaded.values(), *api_backends(settings.apis)],
            runtime,
            unloaded=[name for name in chosen if name not in loaded],
        )
    if runtime is not None or any(isinstance(backend, Backend) for backend in backends or ()):
        raise ConfigurationError(
            "a remote sandbox takes no backend or runtime objects: give them to the server, or leave out the address"
        )
    from agentflow.sandbox._launch import ServerLauncher
    from agentflow.sandbox._remote import RemoteToolHost  # the protocol's client is heavy

    url = _endpoint(settings.server_url)
    token = None if settings.token is None else settings.token.get_secret_value()
    launcher = ServerLauncher(url, settings) if settings.auto_start else None
    return RemoteToolHost(
        url, token, launcher, spare=settings.hang_seconds, wall=settings.limits.wall_seconds
    )


def _endpoint(url: str) -> str:
    """Return the endpoint of all backends together, if the URL is only the server's."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/mcp"


def _backends(settings: SandboxSettings, chosen: Sequence[str | Backend] | None) -> dict[str, Backend | None]:
    """Return backends by the name used in settings; those known by name are loaded at first use."""
    backends: dict[str, Backend | None] = {}
    for backend in (settings.backend_names or BACKENDS) if chosen is None else chosen:
        name = backend.name if isinstance(backend, Backend) else canonical_backend(backend)
        if name in backends:
            raise ConfigurationError(f"backend {name!r} is there already: name each one once")
        if isinstance(backend, Backend):
            backends[name] = backend
        else:
            backends[name] = None if name in BACKENDS else load_backend(name)
    return backends


def _by_own_names(settings: SandboxSettings, loaded: Mapping[str, Backend]) -> SandboxSettings:
    """Return the settings with a backend's own name in place of its import path."""
    own_names = {name: backend.name for name, backend in loaded.items()}
    return settings.model_copy(
        update={
            "backends": {
                own_names.get(name, name): values for name, values in settings.backend_settings.items()
            },
            "warmup": [own_names.get(name, name) for name in settings.warmup_names],
        }
    )
