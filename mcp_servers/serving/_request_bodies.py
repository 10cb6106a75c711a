"""Bodies of requests, read with bounded memory and a fair share of the event loop."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

import anyio
from starlette.types import Message, Receive

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


class Pacer:
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

    def __init__(self, max_bytes: int, clients: Collection[str], pacer: Pacer | None = None) -> None:
        """Prepare to read.

        :param max_bytes: maximum size of a body.
        :param clients: the clients among whom the server is divided.
        """
        self._limits = JsonLimits(max_bytes=max_bytes, max_values=MAX_VALUES)
        self._several = len(clients) > 1
        self._pacer = pacer or Pacer()
        self._turns: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(_AT_ONCE))
        self._held: defaultdict[str, int] = defaultdict(int)
        self._released = anyio.Event()

    @asynccontextmanager
    async def read(
        self, client: str, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> AsyncGenerator[Receive]:
        """Read the body of a request that is answered inside the block; yield a `receive` that replays it.

        :raises BodyRefusedError: if it is too large or too slow.
        """
        self._pacer.see(client)
        size = body_size(headers)
        if size is not None and size > self._limits.max_bytes:
            raise BodyRefusedError(
                413, self._too_large(), close=size > self._limits.max_bytes + DISCARDED_BYTES
            )
        if size is not None and size <= LARGE_BYTES:
            yield _replay(await self._checked(receive), receive)
            return
        held = self._limits.max_bytes if size is None else size
        async with self._turns[client]:
            await self._hold(client, held)
            try:
                # Before reading, because the rest of a body that is refused is received, too.
                await anyio.sleep(self._pacer.delay(client, held * SECONDS_PER_BYTE))
                message = await self._checked(receive)
                # The next large request waits for it.
                self._pacer.delay(client, _decoding_seconds(message))
            except BaseException:
                self._release(client, held)
                raise
        try:
            yield _replay(message, receive)
        finally:
            self._release(client, held)

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
