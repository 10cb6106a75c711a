"""The tool table of a worker, which forwards calls to the worker that owns the session."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ProgressSink, ResourceLink, ToolResult
from mcp_servers.core._session import Resource
from mcp_servers.core._session_tools import SessionList
from mcp_servers.core._sessions import DefaultSession, new_handle
from mcp_servers.core._signature import SESSION_ARGUMENT
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.serving._worker_messages import (
    Forward,
    ListResources,
    Message,
    ProgressReport,
    ReadResource,
    ResourceContent,
    ResourceList,
    ToolCallRequest,
    ToolCallResponse,
)
from mcp_servers.serving._worker_rpc import ConnectionLost

if TYPE_CHECKING:
    from mcp_servers.core._session import Session


ALL_OTHERS = 0

LISTING = ("session_list", "session:list")
"""The only tool that spans the sessions of all workers."""

_HANDLE = re.compile(r"session-[0-9a-f]+-(\d{1,4})\Z")
_ADDRESS = re.compile(r"agentflow://session-[0-9a-f]+-(\d{1,4})/")

Ask = Callable[[Message], AbstractAsyncContextManager[AsyncGenerator[Message]]]


def handles_of(worker: int) -> Callable[[], str]:
    """Return a generator of session handles that contain the number of the worker."""
    return lambda: f"{new_handle()}-{worker}"


def worker_of(handle: object) -> int:
    """Return the number of the worker that a handle names; 0 if none."""
    match = _HANDLE.match(handle) if isinstance(handle, str) else None
    return 0 if match is None else int(match[1])


def gone(handle: str) -> ToolFailure:
    """Return the failure of a call to a session whose worker has died."""
    message = f"session {handle!r} is gone: its worker process has ended. Start a new one with session_start."
    return ToolFailure(ErrorKind.SESSION_NOT_FOUND, message)


class SharedTable(ToolTable):
    """Tool table over the sessions of all workers: own sessions are served here, others by asking their worker."""

    _worker = 0
    _others: Sequence[int] = ()
    _ask: Ask

    def join(self, worker: int, workers: int, ask: Ask) -> None:
        """Join the workers as number `worker` (counted from 1).

        :param ask: sends a request to the front process.
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
        """Call a tool in the worker that owns its session."""
        request = ToolCallRequest(
            name=name,
            arguments=dict(arguments or {}),
            principal=principal,
            timeout=timeout,
            steps=progress is not None,
        )
        worker = worker_of(request.arguments.get(SESSION_ARGUMENT))
        if worker in self._others:
            return await self._call_there(worker, request, progress)
        result = await self.call_here(request, progress)
        if result.ok and name in LISTING:
            return await self._with_others(request, result)
        return result

    async def call_here(self, request: ToolCallRequest, progress: ProgressSink | None) -> ToolResult:
        """Call a tool on a session of this worker."""
        return await super().call(
            request.name,
            request.arguments,
            principal=request.principal,
            timeout=request.timeout,
            progress=progress,
        )

    async def kept(self, principal: str) -> list[ResourceLink]:
        """Return links to the resources of the principal's sessions in all workers."""
        links = list(self.sessions.links(principal))
        async with self._ask(Forward(ALL_OTHERS, ListResources(principal))) as items:
            async for item in items:
                links += item.links if isinstance(item, ResourceList) else ()
        return links

    async def read(self, uri: str, principal: str) -> Resource | None:
        """Return a resource of one of the principal's sessions in any worker."""
        match = _ADDRESS.match(uri)
        worker = self._worker if match is None else int(match[1])
        if worker not in self._others:
            return self.sessions.resource(uri, principal)
        try:
            async with self._ask(Forward(worker, ReadResource(principal, uri))) as items:
                async for item in items:
                    return item.resource if isinstance(item, ResourceContent) else None
        except ConnectionLost:
            return None
        return None

    async def _call_there(
        self, worker: int, request: ToolCallRequest, progress: ProgressSink | None
    ) -> ToolResult:
        try:
            async with self._ask(Forward(worker, request)) as items:
                async for item in items:
                    if isinstance(item, ToolCallResponse):
                        return item.unpacked()
                    if isinstance(item, ProgressReport) and progress is not None:
                        progress(item.done, item.total, item.message)
        except ConnectionLost:
            pass
        return ToolResult.failed(gone(str(request.arguments.get(SESSION_ARGUMENT))))

    async def _with_others(self, request: ToolCallRequest, own: ToolResult) -> ToolResult:
        """Merge the session lists of all workers, oldest first."""
        sessions = SessionList.model_validate(own.data).sessions
        async with self._ask(Forward(ALL_OTHERS, request)) as items:
            async for item in items:
                if isinstance(item, ToolCallResponse) and item.error is None:
                    sessions += SessionList.model_validate(item.data).sessions
        sessions.sort(key=lambda session: session.age_seconds, reverse=True)
        return ToolResult(True, SessionList(sessions=sessions).model_dump(mode="json"))
