"""The one session that a sandbox is, behind whichever door."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._tool_host import Door

__all__ = ["OwnSession", "SessionInfo"]

END_SECONDS = 30.0
"""Time for a session to end; a server that hangs must not keep a sandbox from closing."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A backend that is live in a sandbox."""

    backend: str
    """Its name."""
    session: str
    """The handle of the session that it is live in; all backends of a sandbox share one."""
    running: int
    """Calls that run in the session now."""
    idle_seconds: float
    """How long nobody has used the session."""


class OwnSession:
    """A session made at first use, and worked on by the `session_*` tools as any client would."""

    def __init__(self, door: Door, handle: str | None = None) -> None:
        self._door = door
        self._handle = handle
        self._turn = anyio.Lock()

    @property
    def begun(self) -> bool:
        """It has been made."""
        return self._handle is not None

    async def handle(self) -> str:
        """Its handle; makes it if need be."""
        if self._handle is None:
            async with self._turn:
                if self._handle is None:
                    started = await self._call("start", {}, session=None)
                    self._handle = cast("str", started["session"])
        return self._handle

    async def add(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Make backends live, each with its settings."""
        await self._call("add", {"settings": settings}, session=await self.handle())

    async def remove(self, backends: Iterable[str]) -> None:
        """Clean backends up."""
        if self._handle is not None:
            await self._call("remove", {"backends": list(backends)}, session=self._handle)

    async def refresh(self) -> None:
        """Keep it from ending for want of use."""
        if self._handle is not None:
            await self._call("add", {"settings": {}}, session=self._handle)

    async def end(self) -> None:
        """End it; whoever uses it next makes a new one. Fine if it has ended, or its server has."""
        async with self._turn:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            try:
                await self._call("end", {}, session=handle, timeout=END_SECONDS)
            except ToolFailure as failure:
                if failure.kind not in (ErrorKind.SESSION_NOT_FOUND, ErrorKind.UNAVAILABLE):
                    raise

    async def info(self) -> list[SessionInfo]:
        """What is live in it."""
        if self._handle is None:
            return []
        listing = await self._call("list", {}, session=None)
        sessions = cast("list[dict[str, object]]", listing["sessions"])
        own = next((one for one in sessions if one["session"] == self._handle), None)
        if own is None:
            return []
        backends, running = cast("list[str]", own["backends"]), cast("int", own["running"])
        idle = cast("float", own["idle_seconds"])
        return [SessionInfo(backend, self._handle, running, idle) for backend in backends]

    async def fork(self) -> "tuple[OwnSession, tuple[str, ...]]":
        """An independent copy, and what could not be carried."""
        if self._handle is None:
            return OwnSession(self._door), ()
        forked = await self._call("fork", {}, session=self._handle)
        left_behind = cast("list[str]", forked["left_behind"])
        return OwnSession(self._door, cast("str", forked["session"])), tuple(left_behind)

    async def _call(
        self, verb: str, arguments: Mapping[str, object], *, session: str | None, timeout: float | None = None
    ) -> dict[str, object]:
        tool = self._door.names.find(f"session_{verb}")
        result = await self._door.call(tool, arguments, session=session, timeout=timeout, progress=None)
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message, result.data)
        return result.data
