"""A worker process of a server: a whole tool table, controlled by the front process through standard input."""

import math
import os
import signal
import socket
import sys
from dataclasses import replace

import anyio
from starlette.types import Message as AsgiMessage

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.telemetry import start_tracing
from mcp_servers.core._runtimes import RuntimeHost, runtime_maker
from mcp_servers.serving._content import relayed
from mcp_servers.serving._endpoints import TableEndpoints, admit
from mcp_servers.serving._settings import ServerSettings, make_table, set_up_logging
from mcp_servers.serving._shared_table import SharedTable, handles_of
from mcp_servers.serving._worker_messages import (
    EndSessions,
    ForwardedRequest,
    HttpResponsePart,
    ListResources,
    Message,
    MetricsRequest,
    MetricsText,
    ProgressReport,
    ReadResource,
    ResourceContent,
    ResourceList,
    StartRefused,
    StartWorker,
    ToolCallRequest,
    ToolCallResponse,
    WarmingUp,
)
from mcp_servers.serving._worker_rpc import Frame, RpcConnection, RpcRequest

TELL_SECONDS = 5.0
"""Time for the front process to read why this worker cannot serve."""


class TableWorker:
    """Serves the requests of the front process."""

    def __init__(self) -> None:
        self._connection = RpcConnection(Frame[Message], self._answer)
        self._begun = anyio.Event()
        self._stop = anyio.Event()
        self._start: StartWorker | None = None
        self._tell, self._told = anyio.create_memory_object_stream[WarmingUp | StartRefused](math.inf)
        self._table: SharedTable
        self._endpoints: TableEndpoints

    async def live(self, sock: socket.socket) -> int:
        """Serve until the front process is gone or a signal arrives, then end every session. Return the exit status."""
        status = 0
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            group.start_soon(self._talk, sock)
            await self._begun.wait()
            if self._start is not None:
                status = await self._serve(self._start)
            group.cancel_scope.cancel()
        return status

    async def _watch(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)
            self._end()

    async def _talk(self, sock: socket.socket) -> None:
        await self._connection.run(sock)
        self._end()

    def _end(self) -> None:
        self._stop.set()
        self._begun.set()

    async def _serve(self, start_message: StartWorker) -> int:
        settings = ServerSettings.model_validate(start_message.settings)
        set_up_logging(settings.log_level)
        start_tracing(service="agentflow-tools")
        runtime = RuntimeHost(runtime_maker(settings.runtime, settings.sessions.spec()))
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.run)
            try:
                await self._serve_table(settings, start_message, runtime)
            except AgentFlowError as error:
                self._tell.send_nowait(StartRefused(str(error), isinstance(error, ConfigurationError)))
                self._tell.close()
                # The front process reports the error and then ends this process.
                with anyio.move_on_after(TELL_SECONDS):
                    await self._stop.wait()
                return 1
            finally:
                runtime.close()
        return 0

    async def _serve_table(
        self, settings: ServerSettings, start_message: StartWorker, runtime: RuntimeHost
    ) -> None:
        self._table, warmup = make_table(
            settings, runtime, SharedTable, handles_of(start_message.number), start_message.quotas
        )
        self._table.join(start_message.number, start_message.workers, self._connection.ask)
        options = settings.http_options(None)
        self._endpoints = TableEndpoints(
            self._table, replace(options, scopes=start_message.scopes, quotas=start_message.quotas)
        )
        async with anyio.create_task_group() as group:
            await group.start(self._endpoints.run)
            try:
                await self._endpoints.warm(warmup, lambda names: self._tell.send_nowait(WarmingUp([*names])))
                self._tell.close()
                await self._stop.wait()
            finally:
                await self._table.close()
                self._endpoints.close()

    async def _answer(self, request: Message, reply: RpcRequest[Message]) -> None:
        match request:
            case StartWorker():
                self._start = request
                self._begun.set()
                async for status in self._told:
                    await reply.answer(status)
            case ForwardedRequest():
                await self._respond(request, reply)
            case ToolCallRequest():
                await self._call(request, reply)
            case ListResources(principal):
                await reply.answer(ResourceList([*self._table.sessions.links(principal)]))
            case ReadResource(principal, uri):
                await reply.answer(ResourceContent(self._table.sessions.resource(uri, principal)))
            case MetricsRequest():
                await reply.answer(MetricsText(await self._endpoints.metrics_text()))
            case EndSessions():
                await self._endpoints.end_sessions()
            case _:
                raise TypeError(f"a worker cannot answer a {type(request).__name__}")

    async def _respond(self, request: ForwardedRequest, reply: RpcRequest[Message]) -> None:
        """Answer an HTTP request by calling the ASGI application."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
        }
        admit(scope, request.principal)
        body: list[bytes] = [request.body]
        status = 0
        headers: list[tuple[bytes, bytes]] = []

        async def receive() -> dict[str, object]:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await reply.abandoned.wait()
            return {"type": "http.disconnect"}

        async def send(message: AsgiMessage) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], [*message["headers"]]
                return
            item = HttpResponsePart(
                status=status,
                headers=headers,
                body=message.get("body", b""),
                more=message.get("more_body", False),
                sessions=len(self._table.sessions),
                full=self._table.sessions.full(request.principal),
            )
            headers = []
            await reply.answer(item)

        await self._endpoints.by_path[request.path.rstrip("/")](scope, receive, send)

    async def _call(self, call: ToolCallRequest, reply: RpcRequest[Message]) -> None:
        """Call a tool for another worker."""

        async def report(done: float, total: float | None, message: str | None) -> None:
            await reply.answer(ProgressReport(done, total, message))

        async with reply.cancelled_if_abandoned():
            if call.steps:
                async with relayed(report) as sink:
                    result = await self._table.call_here(call, sink)
            else:
                result = await self._table.call_here(call, None)
            await reply.answer(ToolCallResponse.of(result))


def main() -> int:
    """Serve the front process, connected to standard input. Return the exit status."""
    sock = socket.socket(fileno=os.dup(0))
    # Code in this process and its children must not use the connection.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return anyio.run(TableWorker().live, sock)


if __name__ == "__main__":
    sys.exit(main())
