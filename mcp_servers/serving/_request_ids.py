"""Ids of requests: no two running ones of a connection may have the same."""

import json

import msgspec
from mcp_types import INVALID_REQUEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _Envelope(msgspec.Struct):
    method: object = None
    id: str | int | None = None


_DECODER = msgspec.json.Decoder(_Envelope)


class RequestIds:
    """Refuses a request whose id another running request of its connection has.

    The SDK would send the answer of both to the later one, and the earlier one would wait forever. This happens when two
    programs share the id of a connection.
    """

    def __init__(self, connection: bytes, max_body: int) -> None:
        """Create it empty.

        :param connection: name of the header with the id of the connection.
        :param max_body: requests above this size are passed on unread, to be refused.
        """
        self._connection = connection
        self._max_body = max_body
        self._running: set[tuple[bytes, str]] = set()

    async def run(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer the request, or refuse it."""
        connection = dict(scope["headers"]).get(self._connection)
        if connection is None:
            return await application(scope, receive, send)
        messages = await self._read(receive)

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        envelope = _read(b"".join(message.get("body", b"") for message in messages))
        if envelope.method is None or envelope.id is None:
            return await application(scope, replay, send)
        key = (connection, str(envelope.id))
        if key in self._running:
            return await _refuse(send, envelope.id)
        self._running.add(key)
        try:
            await application(scope, replay, send)
        finally:
            self._running.discard(key)
        return None

    async def _read(self, receive: Receive) -> list[Message]:
        """Read the body, of an oversized one only the first part."""
        messages: list[Message] = []
        size = 0
        while size <= self._max_body:
            messages.append(message := await receive())
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        return messages


def _read(body: bytes) -> _Envelope:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Envelope()  # the application reports the error


async def _refuse(send: Send, number: str | int) -> None:
    message = f"request id {number!r} is in use by a running request of this connection: open a connection for each client"
    error = {"code": INVALID_REQUEST, "message": message}
    content = json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": content})
