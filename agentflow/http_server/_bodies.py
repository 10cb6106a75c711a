"""Bodies of requests: admitted before they are read, with bounded memory and a fair share of the event loop."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
from aiohttp import web
from anyio import to_thread

from runtimes import MIB, FrameError, JsonLimits, check_json

LARGE_BYTES = 16 * 1024
"""Size from which requests are read two at a time per client, and paced."""

PIECE_SECONDS = 30.0
"""Time for each piece of a body to arrive."""

HELD_BYTES = 64 * MIB
"""Total size of the large requests of one client that are being answered, beside other clients."""

HELD_BY_ALL_BYTES = 4 * HELD_BYTES
"""Total size of the large requests of all clients that are being answered."""

HELD_SECONDS = 30.0
"""Time for a large request to wait for that room."""

DISCARDED_BYTES = 64 * MIB
"""Bytes that a server receives and discards after a refusal, so that the client reads the answer."""

SECONDS_PER_BYTE = 8e-9
"""Time to receive and decode a body, for each byte."""

STOPPING = "the server is stopping"

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""Returns the next piece of a body as a message of ASGI."""

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
        # The client that was active last is the last one.
        self._seen: dict[str, float] = {}
        self._debts: dict[str, tuple[float, float]] = {}

    def see(self, client: str) -> None:
        """Record a request of a client."""
        self._seen.pop(client, None)
        self._seen[client] = now = self._clock()
        oldest = next(iter(self._seen))
        if now - self._seen[oldest] > 2 * self.ACTIVE_SECONDS:
            del self._seen[oldest]
            if oldest in self._debts and self._owed(oldest, now) <= 0:
                del self._debts[oldest]

    def delay(self, client: str, seconds: float) -> float:
        """Count an expensive request and return the seconds to wait before it.

        :param seconds: estimated time for which it holds the event loop.
        """
        now = self._clock()
        others = (seen for other, seen in self._seen.items() if other != client)
        if all(now - seen > self.ACTIVE_SECONDS for seen in others):
            self._debts.pop(client, None)
            return 0.0
        debt = self._owed(client, now)
        self._debts[client] = (debt + seconds, now)
        return max(0.0, debt - self.BURST_SECONDS) / self.SHARE

    def _owed(self, client: str, now: float) -> float:
        debt, then = self._debts.get(client, (0.0, now))
        return max(0.0, debt - (now - then) * self.SHARE)


class RequestBodies:
    """Reads the bodies of requests."""

    def __init__(
        self,
        limits: JsonLimits,
        *,
        several: bool = True,
        held_bytes: int = HELD_BYTES,
        throttle: RequestThrottle | None = None,
    ) -> None:
        """Prepare to read.

        :param limits: maximum size of a body, and number of its JSON values: decoding holds the event loop.
        :param several: the server is divided among several clients.
        :param held_bytes: total size of the large requests of one of several clients that are being answered.
        """
        self._limits = limits
        self._several = several
        self._held_bytes = held_bytes
        self._throttle = throttle or RequestThrottle()
        self._turns: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(_AT_ONCE))
        self._held: dict[str, int] = {}
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
    async def read(self, client: str, size: int | None, receive: Receive) -> AsyncGenerator[bytes]:
        """Read the body of a request that is answered inside the block.

        :param size: announced size; `None` if the body ends when the client says so.
        :raises BodyRefusedError: if it is too large or too slow, there is no room for it, or the server stops.
        """
        self._throttle.see(client)
        if size is not None and size > self._limits.max_bytes:
            raise BodyRefusedError(
                413, self._too_large(), close=size > self._limits.max_bytes + DISCARDED_BYTES
            )
        if size is not None and size <= LARGE_BYTES:
            with self._until_stopped():
                body = await self._checked(receive)
            yield body
            return
        held = self._limits.max_bytes if size is None else size
        with self._until_stopped():
            body = await self._read_large(client, held, receive)
        try:
            yield body
        finally:
            self._release(client, held)

    def read_request(self, client: str, request: web.Request) -> AbstractAsyncContextManager[bytes]:
        """Read the body of a request to an application of aiohttp, as `read` does."""
        encoded = "Content-Encoding" in request.headers or "Transfer-Encoding" in request.headers
        size = None if encoded else request.content_length or 0
        return self.read(client, size, partial(_receive, request))

    async def _read_large(self, client: str, held: int, receive: Receive) -> bytes:
        """Return the body of a large request in its turn, with `held` bytes counted until `_release`."""
        async with self._turns[client]:
            await self._hold(client, held)
            try:
                # Before reading, because the rest of a body that is refused is received, too.
                await anyio.sleep(self._throttle.delay(client, held * SECONDS_PER_BYTE))
                body = await self._checked(receive)
                # The next large request waits for it.
                self._throttle.delay(client, self._decoding_seconds(body))
            except BaseException:
                self._release(client, held)
                raise
        return body

    async def _hold(self, client: str, size: int) -> None:
        """Wait until the large requests leave room for another one."""
        with anyio.move_on_after(HELD_SECONDS):
            while not self._has_room(client, size):
                await self._released.wait()
            self._held[client] = self._held.get(client, 0) + size
            return
        raise BodyRefusedError(503, "too many large requests are being answered; try again later", close=True)

    def _has_room(self, client: str, size: int) -> bool:
        own, total = self._held.get(client, 0), sum(self._held.values())
        # One request always has room.
        mine = not own or not self._several or own + size <= self._held_bytes
        return mine and (not total or total + size <= HELD_BY_ALL_BYTES)

    def _release(self, client: str, size: int) -> None:
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
            if self._turns[client].value == _AT_ONCE:
                del self._turns[client]
        self._released.set()
        self._released = anyio.Event()

    async def _checked(self, receive: Receive) -> bytes:
        """Return the whole body."""
        body = bytearray()
        more, unchecked = True, True
        while more:
            message = await _next_piece(receive)
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limits.max_bytes:
                raise BodyRefusedError(413, self._too_large())
            if not more or (unchecked and len(body) > _CHECKED_EARLY):
                unchecked = False
                await self._check(bytes(body))
        return bytes(body)

    async def _check(self, body: bytes) -> None:
        try:
            if len(body) > _CHECKED_EARLY:
                # In pieces, so that other requests are answered in between.
                await to_thread.run_sync(check_json, body, self._limits)
            else:
                check_json(body, self._limits)
        except FrameError:
            text = f"a request may hold at most {self._limits.max_values:,} JSON values"
            raise BodyRefusedError(413, text) from None

    def _too_large(self) -> str:
        return f"a request may have at most {self._limits.max_bytes:,} bytes"

    def _decoding_seconds(self, body: bytes) -> float:
        """Estimate for how long the values and escapes of a body hold the event loop."""
        values = min(body.count(b",") + body.count(b"[") + body.count(b"{"), self._limits.max_values)
        return body.count(b"\\") * 3e-8 + values * 1e-6


async def _receive(request: web.Request) -> MutableMapping[str, Any]:
    """Return the next piece of a body as a message of ASGI."""
    try:
        piece = await request.content.readany()
    except web.RequestPayloadError:
        raise BodyRefusedError(400, "the body does not have the encoding of its headers") from None
    return {"type": "http.request", "body": piece, "more_body": not request.content.at_eof()}


async def _next_piece(receive: Receive) -> MutableMapping[str, Any]:
    # Twice: when a process continues that was suspended, its time is over before it has read what arrived.
    for _ in range(2):
        with anyio.move_on_after(PIECE_SECONDS / 2):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BodyRefusedError(400, "the client has disconnected")
            return message
    raise BodyRefusedError(408, "the body of the request did not arrive in time")


def body_size(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the announced size of a body; `None` if it ends when the client says so.

    See docs/security.md.
    """
    size = next((value for name, value in headers if name == b"content-length"), None)
    if size is None:
        return None if any(name == b"transfer-encoding" for name, _ in headers) else 0
    return int(size)
