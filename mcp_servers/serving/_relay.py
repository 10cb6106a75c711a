"""Forwards HTTP requests to the workers that can answer them, and their answers back."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ToolResult
from mcp_servers.serving._content import call_result
from mcp_servers.serving._endpoints import CONNECTION, PRINCIPAL, respond
from mcp_servers.serving._shared_table import gone, worker_of
from mcp_servers.serving._worker_messages import ForwardedRequest, HttpResponsePart
from mcp_servers.serving._worker_rpc import ConnectionLost

if TYPE_CHECKING:
    from mcp_servers.serving._workers import WorkerProcesses

STARTING = ("session_start", "session:start")
"""The tool that starts a session, in any worker."""

_NUMBERED = re.compile(rb"(.+)-(\d{1,4})\Z")


class _Arguments(msgspec.Struct):
    session: object = None


class _Parameters(msgspec.Struct):
    name: object = None
    arguments: _Arguments | None = None


class _Envelope(msgspec.Struct):
    """The fields of a JSON-RPC message that determine its worker."""

    method: object = None
    id: str | int | None = None
    params: _Parameters | None = None

    @property
    def tool(self) -> object:
        """The tool that it calls."""
        return self.params.name if self.method == "tools/call" and self.params else None

    @property
    def handle(self) -> object:
        """The session that the call names."""
        return self.params.arguments.session if self.tool and self.params and self.params.arguments else None


_DECODER = msgspec.json.Decoder(_Envelope)
_UNREADABLE = _Envelope()


class Relay:
    """ASGI application that forwards admitted requests to workers."""

    def __init__(self, workers: "WorkerProcesses", body_bytes: int) -> None:
        self._workers = workers
        self._body_bytes = body_bytes
        self._open: set[anyio.CancelScope] = set()

    def close(self) -> None:
        """End every answer, including those that only listen."""
        for scope in tuple(self._open):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = await self._body(receive)
        if body is None:
            return
        exchange = _Exchange(self._workers, scope, body, send)
        async with anyio.create_task_group() as group:
            self._open.add(group.cancel_scope)

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    continue
                group.cancel_scope.cancel()

            try:
                group.start_soon(watch)
                await exchange.answer()
                group.cancel_scope.cancel()
            finally:
                self._open.discard(group.cancel_scope)
        await exchange.finish()

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the body, of an oversized one just enough for the worker to refuse it. `None`: the client has gone."""
        body = bytearray()
        while len(body) <= self._body_bytes:
            message: AsgiMessage = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)


class _Exchange:
    """One request and its answer."""

    def __init__(self, workers: "WorkerProcesses", scope: Scope, body: bytes, send: Send) -> None:
        self._workers = workers
        self._scope = scope
        self._body = body
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._envelope = read_envelope(body)
        self._started = False
        self._streams = False
        self._ended = False

    async def answer(self) -> None:
        """Forward the request to a worker, and the answer to the client."""
        connection = _NUMBERED.match(self._headers.get(CONNECTION, b""))
        number = int(connection[2]) if connection else worker_of(self._envelope.handle)
        if not 1 <= number <= self._workers.size:
            starts = self._envelope.tool in STARTING
            worker = self._workers.least_busy(starting=self._scope[PRINCIPAL] if starts else None)
        else:
            worker = self._workers.worker(number)
        sent = False
        if worker is not None:
            listens = self._scope["method"] == "GET"
            worker.active += not listens
            sent = True
            try:
                async with worker.ask(self._request(connection[1] if connection else None)) as items:
                    async for item in items:
                        if isinstance(item, HttpResponsePart):
                            worker.sessions = item.sessions
                            worker.note_full(self._scope[PRINCIPAL], full=item.full)
                            await self._pass_on(item, worker.number)
                return
            except ConnectionLost:
                pass
            finally:
                worker.active -= not listens
        await self._say_gone(number, bound=connection is not None and not (sent and self._envelope.tool))

    async def finish(self) -> None:
        """End an unfinished answer."""
        if self._started and not self._ended:
            await self._send({"type": "http.response.body", "body": b""})

    def _request(self, connection: bytes | None) -> ForwardedRequest:
        headers = [
            (name, connection if name == CONNECTION and connection is not None else value)
            for name, value in self._scope["headers"]
        ]
        return ForwardedRequest(
            method=self._scope["method"],
            path=self._scope["path"],
            query=self._scope["query_string"],
            headers=headers,
            body=self._body,
            principal=self._scope[PRINCIPAL],
        )

    async def _pass_on(self, item: HttpResponsePart, worker: int) -> None:
        if not self._started:
            self._started = True
            headers = [
                (name, value + b"-%d" % worker if name.lower() == CONNECTION else value)
                for name, value in item.headers
            ]
            self._streams = any(value.startswith(b"text/event-stream") for _, value in headers)
            await self._send({"type": "http.response.start", "status": item.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": item.body, "more_body": item.more})
        self._ended = not item.more

    async def _say_gone(self, number: int, *, bound: bool) -> None:
        """Answer in place of a worker that has died.

        :param number: its number; 0 if the request could go to any.
        :param bound: the request belongs to a connection that ended with the worker.
        """
        envelope, status = self._envelope, 200
        answer: dict[str, object] = {"jsonrpc": "2.0", "id": envelope.id}
        if bound and not self._started:
            # As the protocol demands, the client then opens a new connection.
            status, answer["error"] = 404, {"code": INVALID_REQUEST, "message": "Session not found"}
        elif envelope.tool and envelope.id is not None:
            answer["result"] = _lost_call(envelope, number)
        else:
            status, answer["error"] = 503, {"code": INTERNAL_ERROR, "message": LOST}
        if self._started:
            # A stream can still report the loss; any other answer is visibly incomplete.
            if self._streams and not self._ended:
                event = f"event: message\r\ndata: {json.dumps(answer)}\r\n\r\n".encode()
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
                self._ended = True
            return
        self._started = self._ended = True
        await respond(self._send, status, json.dumps(answer).encode())


LOST = "the worker process of this call has ended and may or may not have completed it: call again."


def _lost_call(envelope: _Envelope, number: int) -> Mapping[str, object]:
    """Return the result of a call whose worker has died in wire form."""
    # A connection's worker may have forwarded the call to the worker of the session, which is alive.
    lost = number and worker_of(envelope.handle) == number
    failure = gone(str(envelope.handle)) if lost else ToolFailure(ErrorKind.UNAVAILABLE, LOST)
    result = call_result(ToolResult.failed(failure))
    return {**result.model_dump(mode="json", by_alias=True, exclude_none=True), "resultType": "complete"}


def read_envelope(body: bytes) -> _Envelope:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNREADABLE  # any worker reports the error
