"""HTTP response to one POST: plain JSON if its answer is the only message, server-sent events otherwise."""

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POST_RESPONSE = "agentflow.post_response"
"""Key of the `PostResponse` in a request's ASGI scope."""

_STREAM = b"text/event-stream"
_EVENT, _DATA, _END = b"event: message\r\n", b"data: ", b"\r\n\r\n"
_STREAM_HEADERS = (b"content-type", b"content-length", b"connection", b"x-accel-buffering")


class _Envelope(msgspec.Struct):
    method: str | msgspec.UnsetType = msgspec.UNSET


_DECODER = msgspec.json.Decoder(_Envelope)


class PostResponse:
    """Withholds the start of an event stream until its first event.

    Some clients limit the size of an event, none the size of a JSON body. The SDK chooses events for all answers of the
    handshake era, and in the stateless era for an answer that takes 15 s.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._keep_plain = False
        self._ended = False
        self.streams = False
        """Events have been sent, so the answer will be an event, too."""

    def keep_plain(self) -> bool:
        """Send no more keep-alive events before the answer. Return false if events have been sent already."""
        self._keep_plain = not self.streams
        return self._keep_plain

    async def run(self, application: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Let the application answer the request."""
        scope[POST_RESPONSE] = self
        await application(scope, receive, self._on_message)
        if self._start is not None and not self._ended:
            # The stream has ended without a message.
            await self._stream({"type": "http.response.body", "body": b""})

    async def _on_message(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_stream(message):
            self._start = message
        elif self._start is None or self.streams:
            await self._send(message)
        elif not self._ended:
            await self._choose(message)

    async def _choose(self, message: Message) -> None:
        """Send the first part of a stream, or the only message as JSON."""
        body: bytes = message.get("body", b"")
        answer = _only_answer(body)
        if answer is not None:
            await self._plain(answer)
        elif body and not (self._keep_plain and body.startswith(b":")):
            await self._stream(message)

    async def _plain(self, answer: bytes) -> None:
        assert self._start is not None
        self._ended = True
        kept = [
            (name, value) for name, value in self._start["headers"] if name.lower() not in _STREAM_HEADERS
        ]
        body_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await self._send({**self._start, "headers": [*kept, *body_headers]})
        await self._send({"type": "http.response.body", "body": answer})

    async def _stream(self, message: Message) -> None:
        assert self._start is not None
        self.streams = self._ended = True
        await self._send(self._start)
        await self._send(message)


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in start["headers"]
    )


def _only_answer(event: bytes) -> bytes | None:
    """Return the JSON-RPC response in an event; `None` for any other event."""
    if not (event.startswith(_EVENT + _DATA) and event.endswith(_END)):
        return None
    data = event[len(_EVENT + _DATA) : -len(_END)]
    try:
        return data if b"\n" not in data and _DECODER.decode(data).method is msgspec.UNSET else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
