"""Session of a sandbox, on any tool host."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import anyio
import msgspec
from msgspec import Struct

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._tool_host import ToolHost

END_SECONDS = 30.0
"""Seconds for a session to end; a hanging server must not keep a sandbox from closing."""


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
