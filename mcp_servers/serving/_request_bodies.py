"""Bodies of requests: read with bounded memory and a fair share of the event loop, and their ids."""

import json
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager

import anyio
import msgspec
from mcp_types import INVALID_REQUEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtimes import MIB, FrameError, JsonLimits, check_json

MAX_VALUES = 20_000
"""JSON values of a request. Decoding holds the event loop: this many take about 25 ms."""

LARGE_BYTES = 16 * 1024
"""Size from which requests are read two at a time per client, and paced."""

PIECE_SECONDS = 30.0
"""Time for each piece of a body to arrive."""

HELD_BYTES = 64 * MIB
"""Total size of the large requests of one client that are being answered, if the server has several clients."""

DISCARDED_BYTES = 64 * MIB
"""Bytes that the server receives and discards after a refusal, so that the client reads the answer."""

SECONDS_PER_BYTE = 8e-9
"""Time to receive and decode a body, for each byte."""

STOPPING = "the server is stopping"

_CHECKED_EARLY = 256 * 1024
_AT_ONCE = 2


class BodyRefusedError(Exception):
    """A body over a limit."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        """Store the HTTP status and one line for the client.

        :param close: close the connection instead of receiving the rest, although the client may then miss the answer.
        """
        super().__init__(message)
        self.status = status
        self.close = close


class RequestThrottle:
    """Spreads the expensive requests of a client over time while other clients are active.

    A client that is alone is never delayed. Beside others, its expensive requests take at most `SHARE` of the time, after a
    burst of `BURST_SECONDS`.
    """

    SHARE = 0.15
    BURST_SECONDS = 0.05
    ACTIVE_SECONDS = 2.0
    """Time since its last request for which a client is active."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it without clients."""
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._debts: dict[str, tuple[float, float]] = {}

    def see(self, client: str) -> None:
        """Record a request of a client."""
        self._seen[client] = self._clock()

    def delay(self, client: str, seconds: float) -> float:
        """Count an expensive request and return the seconds to wait before it.

        :param seconds: estimated time for which it holds the event loop.
        """
        now = self._clock()
        others = (seen for other, seen in self._seen.items() if other != client)
        if all(now - seen > self.ACTIVE_SECONDS for seen in others):
            self._debts.pop(client, None)
            return 0.0
        debt, then = self._debts.get(client, (0.0, now))
        debt = max(0.0, debt - (now - then) * self.SHARE)
        self._debts[client] = (debt + seconds, now)
        return max(0.0, debt - self.BURST_SECONDS) / self.SHARE


class RequestBodies:
    """Reads the bodies of requests."""

    def __init__(
        self, max_bytes: int, clients: Collection[str], throttle: RequestThrottle | None = None
    ) -> None:
        """Prepare to read.

        :param max_bytes: maximum size of a body.
        :param clients: the clients among whom the server is divided.
        """
        self._limits = JsonLimits(max_bytes=max_bytes, max_values=MAX_VALUES)
        self._several = len(clients) > 1
        self._throttle = throttle or RequestThrottle()
        self._turns: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(_AT_ONCE))
        self._held: defaultdict[str, int] = defaultdict(int)
        self._released = anyio.Event()
        self._unread: set[anyio.CancelScope] = set()

    def stop(self) -> None:
        """Refuse the bodies that have not arrived completely."""
        for scope in tuple(self._unread):
            scope.cancel()

    @contextmanager
    def _until_stopped(self) -> Generator[None]:
        with anyio.CancelScope() as scope:
            self._unread.add(scope)
            try:
                yield
            finally:
                self._unread.discard(scope)
        if scope.cancelled_caught:
            raise BodyRefusedError(503, STOPPING, close=True)

    @asynccontextmanager
    async def read(
        self, client: str, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> AsyncGenerator[Receive]:
        """Read the body of a request that is answered inside the block; yield a `receive` that replays it.

        :raises BodyRefusedError: if it is too large or too slow, or the server stops.
        """
        self._throttle.see(client)
        size = body_size(headers)
        if size is not None and size > self._limits.max_bytes:
            raise BodyRefusedError(
                413, self._too_large(), close=size > self._limits.max_bytes + DISCARDED_BYTES
            )
        if size is not None and size <= LARGE_BYTES:
            with self._until_stopped():
                message = await self._checked(receive)
            yield _replay(message, receive)
            return
        held = self._limits.max_bytes if size is None else size
        with self._until_stopped():
            message = await self._read_large(client, held, receive)
        try:
            yield _replay(message, receive)
        finally:
            self._release(client, held)

    async def _read_large(self, client: str, held: int, receive: Receive) -> Message:
        """Return the body of a large request in its turn, with `held` bytes counted until `_release`."""
        async with self._turns[client]:
            await self._hold(client, held)
            try:
                # Before reading, because the rest of a body that is refused is received, too.
                await anyio.sleep(self._throttle.delay(client, held * SECONDS_PER_BYTE))
                message = await self._checked(receive)
                # The next large request waits for it.
                self._throttle.delay(client, _decoding_seconds(message))
            except BaseException:
                self._release(client, held)
                raise
        return message

    async def _hold(self, client: str, size: int) -> None:
        """Wait until the client's large requests leave room for another one."""
        while self._several and self._held[client] and self._held[client] + size > HELD_BYTES:
            await self._released.wait()
        self._held[client] += size

    def _release(self, client: str, size: int) -> None:
        self._held[client] -= size
        self._released.set()
        self._released = anyio.Event()

    async def _checked(self, receive: Receive) -> Message:
        """Return the whole body as one message."""
        body = bytearray()
        more, unchecked = True, True
        while more:
            try:
                with anyio.fail_after(PIECE_SECONDS):
                    message = await receive()
            except TimeoutError:
                text = "the body of the request did not arrive in time"
                raise BodyRefusedError(408, text) from None
            if message["type"] == "http.disconnect":
                raise BodyRefusedError(400, "the client has disconnected")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limits.max_bytes:
                raise BodyRefusedError(413, self._too_large())
            if not more or (unchecked and len(body) > _CHECKED_EARLY):
                unchecked = False
                self._check(bytes(body))
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    def _check(self, body: bytes) -> None:
        try:
            check_json(body, self._limits)
        except FrameError:
            raise BodyRefusedError(413, f"a request may hold at most {MAX_VALUES:,} JSON values") from None

    def _too_large(self) -> str:
        return f"a request may have at most {self._limits.max_bytes:,} bytes"


def body_size(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the announced size of a body; `None` if it ends when the client says so."""
    size = next((value for name, value in headers if name == b"content-length"), None)
    if size is None:
        return None if any(name == b"transfer-encoding" for name, _ in headers) else 0
    return int(size)


def _decoding_seconds(message: Message) -> float:
    """Estimate for how long the values and escapes of a body hold the event loop."""
    body: bytes = message.get("body", b"")
    values = min(body.count(b",") + body.count(b"[") + body.count(b"{"), MAX_VALUES)
    return body.count(b"\\") * 3e-8 + values * 1e-6


def _replay(message: Message, receive: Receive) -> Receive:
    messages = [message]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


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
