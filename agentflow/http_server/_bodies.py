"""Bodies of requests: admitted before they are read, with bounded memory and a fair share of the event loop."""

import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
from aiohttp import web
from anyio import to_thread

from runtimes import MIB, JsonLimits, json_values

LARGE_BYTES = 16 * 1024
"""Size from which requests are read two at a time per client, and paced."""

PIECE_SECONDS = 30.0
"""Time for each piece of a body to arrive."""

VALUE_BYTES = 128
"""Memory of a decoded JSON value, beside its text."""

HELD_BYTES = 64 * MIB
"""Memory of the large requests of one client that are being answered, beside other clients."""

HELD_BY_ALL_BYTES = 4 * HELD_BYTES
"""Memory of the large requests of all clients that are being read, and of those that are being answered."""

HELD_SECONDS = 30.0
"""Time for a large request to wait for that memory."""

DISCARDED_BYTES = 64 * MIB
"""Bytes that a server receives and discards after a refusal, so that the client reads the answer."""

SECONDS_PER_BYTE = 8e-9
"""Time to receive and decode a body, for each byte."""

SECONDS_PER_VALUE = 1e-6
"""Time to decode a JSON value."""

STOPPING = "the server is stopping"

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""Returns the next piece of a body as a message of ASGI."""

_CHECKED_EARLY = 256 * 1024
_FEW_VALUES = 4096
"""Number of values from which they are counted exactly: text may look like many more."""
_AT_ONCE = 2


class BodyRefusedError(Exception):
    """A body over a limit."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        """:param close: close the connection instead of receiving the rest, although the client may then miss the answer."""
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


class _HeldMemory:
    """Memory of large requests, counted until they end."""

    def __init__(self, of_one: float) -> None:
        """:param of_one: limit of one client; a single request is never over it. That of all is `HELD_BY_ALL_BYTES`."""
        self._of_one = of_one
        self._held: dict[str, int] = {}
        self._released = anyio.Event()

    async def reserve(self, client: str, size: int) -> None:
        """Wait until there is room, and count a request.

        :raises BodyRefusedError: if there is none for too long.
        """
        with anyio.move_on_after(HELD_SECONDS):
            while not self._has_room(client, size):
                await self._released.wait()
            self._held[client] = self._held.get(client, 0) + size
            return
        raise BodyRefusedError(503, "too many large requests are being answered; try again later", close=True)

    def release(self, client: str, size: int) -> None:
        """Count a request no longer."""
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
        self._released.set()
        self._released = anyio.Event()

    def _has_room(self, client: str, size: int) -> bool:
        held, total = self._held.get(client, 0), sum(self._held.values())
        return (not held or held + size <= self._of_one) and (not total or total + size <= HELD_BY_ALL_BYTES)


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
        """:param limits: maximum size of a body, and number of its JSON values: decoding holds the event loop.
        :param several: the server is divided among several clients.
        :param held_bytes: memory of the large requests of one of several clients that are being answered.
        """
        self._limits = limits
        # Two, so that what waits for one is complete, and the wait ends.
        self._read_memory = _HeldMemory(math.inf)
        self._answered_memory = _HeldMemory(held_bytes if several else math.inf)
        self._throttle = throttle or RequestThrottle()
        self._turns: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(_AT_ONCE))
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
        if size is not None and size > self._limits.max_bytes + DISCARDED_BYTES:
            raise BodyRefusedError(413, self._too_large(), close=True)
        if size is not None and size <= LARGE_BYTES:
            with self._until_stopped():
                body, _ = await self._checked(receive)
            yield body
            return
        with self._until_stopped():
            body, held = await self._read_large(client, size, receive)
        # The block may release the body before its end.
        kept = [body]
        del body
        try:
            yield kept.pop()
        finally:
            self._answered_memory.release(client, held)

    @asynccontextmanager
    async def holding(self, client: str, size: int) -> AsyncGenerator[None]:
        """Count memory of an answer beside its request, inside the block.

        :raises BodyRefusedError: if there is none for too long.
        """
        await self._answered_memory.reserve(client, size)
        try:
            yield
        finally:
            self._answered_memory.release(client, size)

    def read_request(self, client: str, request: web.Request) -> AbstractAsyncContextManager[bytes]:
        """Read the body of a request to an application of aiohttp, as `read` does."""
        encoded = "Content-Encoding" in request.headers or "Transfer-Encoding" in request.headers
        size = None if encoded else request.content_length or 0
        return self.read(client, size, partial(_receive, request))

    async def _read_large(self, client: str, size: int | None, receive: Receive) -> tuple[bytes, int]:
        """Return the body of a large request in its turn, and the memory that is counted for its answer."""
        turns = self._turns[client]
        size = self._limits.max_bytes if size is None else size
        read = min(size, self._limits.max_bytes)
        try:
            async with turns:
                await self._read_memory.reserve(client, read)
                try:
                    # Before reading, because the rest of a body that is refused is received, too.
                    await anyio.sleep(self._throttle.delay(client, size * SECONDS_PER_BYTE))
                    if size > read:
                        rest = await _discard(receive, True)
                        raise BodyRefusedError(413, self._too_large(), close=rest)
                    body, values = await self._checked(receive)
                    held = len(body) + values * VALUE_BYTES
                    await self._answered_memory.reserve(client, held)
                finally:
                    self._read_memory.release(client, read)
                # The next large request waits for it.
                self._throttle.delay(client, body.count(b"\\") * 3e-8 + values * SECONDS_PER_VALUE)
        finally:
            if turns.value == _AT_ONCE:
                self._turns.pop(client, None)
        return body, held

    async def _checked(self, receive: Receive) -> tuple[bytes, int]:
        """Return the whole body, and a bound of the number of its JSON values."""
        received = bytearray()
        more, unchecked = True, True
        while more:
            message = await _next_piece(receive)
            received += message.get("body", b"")
            more = message.get("more_body", False)
            if len(received) > self._limits.max_bytes:
                received.clear()
                rest = await _discard(receive, more)
                raise BodyRefusedError(413, self._too_large(), close=rest)
            if unchecked and len(received) > _CHECKED_EARLY:
                unchecked = False
                await self._check(received)
        body = bytes(received)
        return body, await self._check(body)

    async def _check(self, body: bytes | bytearray) -> int:
        if len(body) > _CHECKED_EARLY:
            # In pieces, so that other requests are answered in between.
            values = await to_thread.run_sync(self._values, body)
        else:
            values = self._values(body)
        if values > self._limits.max_values:
            raise BodyRefusedError(413, f"a request may hold at most {self._limits.max_values:,} JSON values")
        return values

    def _values(self, body: bytes | bytearray) -> int:
        limit = self._limits.max_values
        return json_values(bytes(body), few=min(_FEW_VALUES, limit), most=limit)

    def _too_large(self) -> str:
        return f"a request may have at most {self._limits.max_bytes:,} bytes"


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


async def _discard(receive: Receive, more: bool) -> bool:
    """Receive the rest of a body that is too large, so that the client reads the answer; return true if it is endless."""
    room = DISCARDED_BYTES
    while more and room > 0:
        message = await _next_piece(receive)
        room -= len(message.get("body", b""))
        more = message.get("more_body", False)
    return more


def body_size(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the announced size of a body; `None` if it ends when the client says so.

    See docs/security.md.
    """
    size = next((value for name, value in headers if name == b"content-length"), None)
    if size is None:
        return None if any(name == b"transfer-encoding" for name, _ in headers) else 0
    return int(size)
