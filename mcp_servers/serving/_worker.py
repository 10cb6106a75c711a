"""One worker process of a server: a whole table, reached by a line to its front, which is its standard input."""

import math
import os
import signal
import socket
import sys
from dataclasses import replace

import anyio
from starlette.types import Message as AsgiMessage

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._runtimes import RuntimeHost, runtime_maker
from mcp_servers.serving._content import relayed
from mcp_servers.serving._endpoints import Endpoints, admit
from mcp_servers.serving._settings import ServerSettings
from mcp_servers.serving._shared_table import SharedTable, handles_of
from mcp_servers.serving._startup import make_table, set_up_logging
from mcp_servers.serving._worker_messages import (
    MESSAGE,
    Begin,
    Call,
    End,
    Found,
    Kept,
    ListKept,
    Message,
    Metrics,
    Read,
    Refused,
    Request,
    Response,
    Result,
    Step,
    Waiting,
    Written,
)
from mcp_servers.serving._worker_rpc import Asked, Line

__all__ = ["main"]

TELL_SECONDS = 5.0
"""Time for the front to hear why this worker can't serve."""


class Worker:
    """Serves what its front asks for."""

    def __init__(self) -> None:
        self._line = Line[Message](MESSAGE, self._answer)
        self._begun = anyio.Event()
        self._stop = anyio.Event()
        self._begin: Begin | None = None
        self._tell, self._told = anyio.create_memory_object_stream[Waiting | Refused](math.inf)
        self._table: SharedTable
        self._endpoints: Endpoints

    async def live(self, sock: socket.socket) -> int:
        """Serve until the front is gone or a signal comes, then end every session. The exit status."""
        status = 0
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            group.start_soon(self._talk, sock)
            await self._begun.wait()
            if self._begin is not None:
                status = await self._serve(self._begin)
            group.cancel_scope.cancel()
        return status

    async def _watch(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)
            self._end()

    async def _talk(self, sock: socket.socket) -> None:
        await self._line.run(sock)
        self._end()

    def _end(self) -> None:
        self._stop.set()
        self._begun.set()

    async def _serve(self, begin: Begin) -> int:
        settings = ServerSettings.model_validate(begin.settings)
        set_up_logging(settings.log_level)
        runtime = RuntimeHost(runtime_maker(settings.runtime, settings.sessions.spec()))
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.run)
            try:
                await self._serve_table(settings, begin, runtime)
            except AgentFlowError as error:
                self._tell.send_nowait(Refused(str(error), isinstance(error, ConfigurationError)))
                self._tell.close()
                # The front says it; it ends this process when it has heard.
                with anyio.move_on_after(TELL_SECONDS):
                    await self._stop.wait()
                return 1
            finally:
                runtime.close()
        return 0

    async def _serve_table(self, settings: ServerSettings, begin: Begin, runtime: RuntimeHost) -> None:
        made = make_table(settings, runtime, SharedTable, handles_of(begin.number))
        self._table = made.table
        self._table.join(begin.number, begin.workers, self._line.ask)
        options = settings.http_options(None)
        self._endpoints = Endpoints(self._table, replace(options, scopes=begin.scopes))
        async with anyio.create_task_group() as group:
            await group.start(self._endpoints.run)
            try:
                await self._endpoints.warm(
                    made.warmup, lambda names: self._tell.send_nowait(Waiting([*names]))
                )
                self._tell.close()
                await self._stop.wait()
            finally:
                await self._table.close()
                self._endpoints.close()

    async def _answer(self, question: Message, asked: Asked[Message]) -> None:
        match question:
            case Begin():
                self._begin = question
                self._begun.set()
                async for told in self._told:
                    await asked.answer(told)
            case Request():
                await self._respond(question, asked)
            case Call():
                await self._call(question, asked)
            case ListKept(principal):
                await asked.answer(Kept(await self._table.kept_here(principal)))
            case Read(principal, uri):
                await asked.answer(Found(await self._table.read_here(uri, principal)))
            case Metrics():
                await asked.answer(Written(await self._endpoints.counted()))
            case End():
                await self._endpoints.end_sessions()
            case _:
                raise TypeError(f"a worker is not asked for a {type(question).__name__}")

    async def _respond(self, request: Request, asked: Asked[Message]) -> None:
        """Answer an HTTP request, as the web server would ask for it."""
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
            await asked.given_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: AsgiMessage) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], [*message["headers"]]
                return
            piece = Response(
                status=status,
                headers=headers,
                body=message.get("body", b""),
                more=message.get("more_body", False),
                sessions=len(self._table.sessions),
            )
            headers = []
            await asked.answer(piece)

        await self._endpoints.by_path[request.path.rstrip("/")](scope, receive, send)

    async def _call(self, call: Call, asked: Asked[Message]) -> None:
        """Call a tool for another worker."""

        async def report(done: float, total: float | None, message: str | None) -> None:
            await asked.answer(Step(done, total, message))

        async with asked.wanted():
            if call.steps:
                async with relayed(report) as sink:
                    result = await self._table.call_here(call, sink)
            else:
                result = await self._table.call_here(call, None)
            await asked.answer(Result.of(result))


def main() -> int:
    """Serve the front at the other end of standard input. The exit status."""
    sock = socket.socket(fileno=os.dup(0))
    # What runs in this process, and its children, must not meet the line.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return anyio.run(Worker().live, sock)


if __name__ == "__main__":
    sys.exit(main())
