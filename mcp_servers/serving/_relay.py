"""Brings HTTP requests to the workers that can answer them, and their answers back."""

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ToolError, ToolResult
from mcp_servers.serving._content import call_result
from mcp_servers.serving._endpoints import PRINCIPAL
from mcp_servers.serving._shared_table import gone, worker_of
from mcp_servers.serving._worker_messages import Message, Request, Response
from mcp_servers.serving._worker_rpc import LineBroken

__all__ = ["Crew", "Mate", "Relay"]

CONNECTION = b"mcp-session-id"
"""Names a connection of the handshake era. To the client it ends in the number of its worker."""

_NUMBERED = re.compile(rb"(.+)-(\d{1,4})\Z")


class Mate(Protocol):
    """One worker that can answer."""

    number: int
    """Which."""
    active: int
    """Requests that it is answering, without streams that only listen."""
    sessions: int
    """Sessions that it had when it last answered."""

    def ask(self, question: Message) -> AbstractAsyncContextManager[AsyncGenerator[Message]]:
        """Ask it."""
        ...


class Crew(Protocol):
    """All workers."""

    most: int
    """How many there are when all can answer."""

    def mate(self, number: int) -> Mate | None:
        """That one, if it can answer now."""
        ...

    def least_busy(self, *, sessions: bool) -> Mate | None:
        """The one with the fewest requests, or sessions; `None`: nobody can answer now."""
        ...


class _Arguments(msgspec.Struct):
    session: object = None


class _Parameters(msgspec.Struct):
    name: object = None
    arguments: _Arguments | None = None


class _Envelope(msgspec.Struct):
    """As much of a JSON-RPC message as tells where it belongs."""

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
    """The endpoints of a server with several workers: an ASGI application for requests that may come in."""

    def __init__(self, crew: Crew, body_bytes: int) -> None:
        self._crew = crew
        self._body_bytes = body_bytes
        self._open: set[anyio.CancelScope] = set()

    def close(self) -> None:
        """End every answer, also those that only listen."""
        for scope in tuple(self._open):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = await self._body(receive)
        if body is None:
            return
        exchange = _Exchange(self._crew, scope, body, send)
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
        """The body; of one that is too large enough for the worker to refuse it. `None`: the client has gone."""
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

    def __init__(self, crew: Crew, scope: Scope, body: bytes, send: Send) -> None:
        self._crew = crew
        self._scope = scope
        self._body = body
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._envelope = _read(body)
        self._started = False
        self._streams = False
        self._ended = False

    async def answer(self) -> None:
        """Bring it to a worker, and what comes back to the client."""
        connection = _NUMBERED.match(self._headers.get(CONNECTION, b""))
        number = int(connection[2]) if connection else worker_of(self._envelope.handle)
        if not 1 <= number <= self._crew.most:
            mate = self._crew.least_busy(sessions=self._envelope.tool == "session_start")
        else:
            mate = self._crew.mate(number)
        if mate is not None:
            listens = self._scope["method"] == "GET"
            mate.active += not listens
            try:
                async with mate.ask(self._request(connection[1] if connection else None)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Response):
                            mate.sessions = piece.sessions
                            await self._pass_on(piece, mate.number)
                return
            except LineBroken:
                pass
            finally:
                mate.active -= not listens
        await self._say_gone(bound=connection is not None)

    async def finish(self) -> None:
        """End an answer that was left in the middle."""
        if self._started and not self._ended:
            await self._send({"type": "http.response.body", "body": b""})

    def _request(self, connection: bytes | None) -> Request:
        headers = [
            (name, connection if name == CONNECTION and connection is not None else value)
            for name, value in self._scope["headers"]
        ]
        return Request(
            method=self._scope["method"],
            path=self._scope["path"],
            query=self._scope["query_string"],
            headers=headers,
            body=self._body,
            principal=self._scope[PRINCIPAL],
        )

    async def _pass_on(self, piece: Response, worker: int) -> None:
        if not self._started:
            self._started = True
            headers = [
                (name, value + b"-%d" % worker if name.lower() == CONNECTION else value)
                for name, value in piece.headers
            ]
            self._streams = any(value.startswith(b"text/event-stream") for _, value in headers)
            await self._send({"type": "http.response.start", "status": piece.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": piece.body, "more_body": piece.more})
        self._ended = not piece.more

    async def _say_gone(self, *, bound: bool) -> None:
        """Answer for a worker that is not there any more."""
        envelope, status = self._envelope, 200
        answer: dict[str, object] = {"jsonrpc": "2.0", "id": envelope.id}
        if bound and not self._started:
            # As the protocol has it, the client makes a new connection then.
            status, answer["error"] = 404, {"code": INVALID_REQUEST, "message": "Session not found"}
        elif envelope.tool and envelope.id is not None:
            answer["result"] = _failed(_loss(envelope))
        else:
            status, answer["error"] = 503, {"code": INTERNAL_ERROR, "message": LOST}
        if self._started:
            # A stream can still tell; of anything else the client sees that it is not whole.
            if self._streams and not self._ended:
                event = f"event: message\r\ndata: {json.dumps(answer)}\r\n\r\n".encode()
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
                self._ended = True
            return
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        self._started = self._ended = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})


LOST = (
    "the worker process that was to answer has ended; whether it did what was asked is not known: ask again."
)


def _loss(envelope: _Envelope) -> ToolFailure:
    if worker_of(envelope.handle):
        return gone(str(envelope.handle))
    return ToolFailure(ErrorKind.UNAVAILABLE, LOST)


def _failed(failure: ToolFailure) -> Mapping[str, object]:
    """The result of a failed call, as it goes over the wire."""
    result = call_result(ToolResult(False, error=ToolError(failure.kind, failure.message)))
    return {**result.model_dump(mode="json", by_alias=True, exclude_none=True), "resultType": "complete"}


def _read(body: bytes) -> _Envelope:
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError:
        return _UNREADABLE  # any worker says what is wrong with it
