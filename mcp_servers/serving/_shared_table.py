"""The tool table of a worker: what lives in another worker is asked for there."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ProgressSink, ResourceLink, ToolError, ToolResult
from mcp_servers.core._resource_store import Resource
from mcp_servers.core._sessions import DefaultSession, new_handle
from mcp_servers.core._signature import SESSION_ARGUMENT
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.serving._worker_messages import Call, Found, Kept, ListKept, Message, Read, Result, Step, To
from mcp_servers.serving._worker_rpc import LineBroken

if TYPE_CHECKING:
    from mcp_servers.core._session import Session

__all__ = ["SharedTable", "gone", "handles_of", "worker_of"]

ALL_OTHERS = 0

LISTING = ("session_list", "session:list")
"""The one tool that is about the sessions of every worker."""

_HANDLE = re.compile(r"session-[0-9a-f]+-(\d{1,4})\Z")
_ADDRESS = re.compile(r"agentflow://session-[0-9a-f]+-(\d{1,4})/")

Ask = Callable[[Message], AbstractAsyncContextManager[AsyncGenerator[Message]]]


def handles_of(worker: int) -> Callable[[], str]:
    """Makes handles that say in which worker their session lives."""
    return lambda: f"{new_handle()}-{worker}"


def worker_of(handle: object) -> int:
    """The worker that a handle names; 0: none."""
    found = _HANDLE.match(handle) if isinstance(handle, str) else None
    return 0 if found is None else int(found[1])


def gone(handle: str) -> ToolFailure:
    """The failure of a call to a session whose worker has died."""
    message = f"session {handle!r} is gone: the worker process that held it has ended. session_start makes a new one."
    return ToolFailure(ErrorKind.SESSION_NOT_FOUND, message)


class SharedTable(ToolTable):
    """Answers for the sessions of all workers: its own are here, for the others it asks."""

    _worker = 0
    _others: Sequence[int] = ()
    _ask: Ask

    def join(self, worker: int, workers: int, ask: Ask) -> None:
        """Become that worker of so many, counted from 1.

        :param ask: asks the front.
        """
        self._worker = worker
        self._others = [number for number in range(1, workers + 1) if number != worker]
        self._ask = ask

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
        """Call a tool, where its session is."""
        question = Call(
            name=name,
            arguments=dict(arguments or {}),
            principal=principal,
            timeout=timeout,
            steps=progress is not None,
        )
        worker = worker_of(question.arguments.get(SESSION_ARGUMENT))
        if worker in self._others:
            return await self._call_there(worker, question, progress)
        result = await self.call_here(question, progress)
        if result.ok and name in LISTING:
            return await self._with_others(question, result)
        return result

    async def call_here(self, question: Call, progress: ProgressSink | None) -> ToolResult:
        """Call a tool on a session of this worker."""
        return await super().call(
            question.name,
            question.arguments,
            principal=question.principal,
            timeout=question.timeout,
            progress=progress,
        )

    async def kept_here(self, principal: str) -> list[ResourceLink]:
        """What the principal's sessions of this worker keep."""
        return await super().kept(principal)

    async def read_here(self, uri: str, principal: str) -> Resource | None:
        """What one of the principal's sessions of this worker keeps."""
        return await super().read(uri, principal)

    async def kept(self, principal: str) -> list[ResourceLink]:
        """What the principal's sessions keep, in all workers."""
        links = await super().kept(principal)
        async with self._ask(To(ALL_OTHERS, ListKept(principal))) as pieces:
            async for piece in pieces:
                links += piece.links if isinstance(piece, Kept) else ()
        return links

    async def read(self, uri: str, principal: str) -> Resource | None:
        """What one of the principal's sessions keeps, in whatever worker."""
        found = _ADDRESS.match(uri)
        worker = self._worker if found is None else int(found[1])
        if worker not in self._others:
            return await super().read(uri, principal)
        try:
            async with self._ask(To(worker, Read(principal, uri))) as pieces:
                async for piece in pieces:
                    return piece.resource if isinstance(piece, Found) else None
        except LineBroken:
            return None
        return None

    async def _call_there(self, worker: int, question: Call, progress: ProgressSink | None) -> ToolResult:
        try:
            async with self._ask(To(worker, question)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Result):
                        return piece.unpacked()
                    if isinstance(piece, Step) and progress is not None:
                        progress(piece.done, piece.total, piece.message)
        except LineBroken:
            pass
        failure = gone(str(question.arguments.get(SESSION_ARGUMENT)))
        return ToolResult(False, failure.data, ToolError(failure.kind, failure.message))

    async def _with_others(self, question: Call, own: ToolResult) -> ToolResult:
        """The sessions of all workers, oldest first."""
        listed = _listed(own.data)
        async with self._ask(To(ALL_OTHERS, question)) as pieces:
            async for piece in pieces:
                listed += _listed(piece.data) if isinstance(piece, Result) else []
        return ToolResult(
            True, {"sessions": sorted(listed, key=lambda one: one["age_seconds"], reverse=True)}
        )


def _listed(data: dict[str, object]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", data.get("sessions", []))
