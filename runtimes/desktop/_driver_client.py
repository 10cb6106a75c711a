"""Client of a desktop's driver: concurrent requests over the pipes of one command."""

import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import anyio

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._framing import FrameDecoder, pack_frame
from runtimes._protocol import Stream
from runtimes.desktop.inside._wire import LARGEST, Message, pack, unpack

_STDERR_BYTES = 4096
_IGNORED_STDERR = re.compile(r"^(_XSERV|Openbox-|The XKEYBOARD|>|Errors from|Could not|\s*$)")


@dataclass(slots=True)
class _PendingRequest:
    """Request that awaits its answer."""

    answer: tuple[Message, bytes] | None = None
    woken: anyio.Event = field(default_factory=anyio.Event)
    """Set when the answer has arrived, or when this task is the next to read."""
    sent: bool = False
    """The request was sent, so this task may become the reader."""


class DriverClient:
    """Requests and answers. One of the waiting tasks reads for all of them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._frames = FrameDecoder(LARGEST)
        self._waiting: dict[int, _PendingRequest] = {}
        self._reading = False
        self._stderr = b""
        self._ended = False

    async def start(self, first: bytes) -> None:
        """Send the driver its code and wait until the desktop is ready.

        :raises InstanceGone: if it did not start; with the last line of its standard error.
        """
        with suppress(BrokenPipeError):
            await self._stream.send(first)
        await self._answer(0, _PendingRequest())

    async def ask(self, op: str, **details: object) -> tuple[Message, bytes]:
        """Send a request and wait for the answer.

        :raises InstanceGone: if the desktop has ended.
        :raises ValueError: if the driver rejects the arguments.
        :raises RuntimeFailure: if the driver failed.
        """
        number, waiting = next(self._numbers), _PendingRequest()
        self._waiting[number] = waiting
        try:
            await self._stream.send(pack_frame(pack({"id": number, "op": op, **details})))
        except BrokenPipeError:
            self._ended = True
        except BaseException:
            del self._waiting[number]
            raise
        message, data = await self._answer(number, waiting)
        if "error" in message:
            kind = ValueError if message["error"] == "value" else RuntimeFailure
            raise kind(str(message.get("detail", ""))[:500])
        return message, data

    async def close(self) -> None:
        """End the driver, the X server and all applications."""
        self._ended = True
        await self._stream.kill()
        await self._stream.__aexit__(None, None, None)

    async def _answer(self, number: int, waiting: _PendingRequest) -> tuple[Message, bytes]:
        self._waiting[number] = waiting
        waiting.sent = True
        try:
            while waiting.answer is None:
                if self._ended:
                    raise self._gone()
                if self._reading:
                    await waiting.woken.wait()
                    waiting.woken = anyio.Event()
                    continue
                self._reading = True
                try:
                    await self._receive()
                finally:
                    self._reading = False
            return waiting.answer
        finally:
            del self._waiting[number]
            if not self._reading:
                self._wake_next()

    def _wake_next(self) -> None:
        """Wake the next reader; after the end, wake everybody."""
        for other in self._waiting.values():
            if other.sent and other.answer is None:
                other.woken.set()
                if not self._ended:
                    return

    async def _receive(self) -> None:
        pieces = self._stream.receive()
        try:
            name, data = await anext(pieces)
        except StopAsyncIteration:
            self._ended = True
            return
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if name == "stderr":
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
            return
        self._frames.feed(data)
        try:
            for payload in self._frames:
                self._take(payload)
        except ValueError:
            # Code inside may have replaced the driver: it is no longer trusted.
            self._ended = True
            await self._stream.kill()

    def _take(self, payload: bytes) -> None:
        message, data = unpack(payload)
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None:
            waiting.answer = message, data
            waiting.woken.set()

    def _gone(self) -> InstanceGone:
        lines = self._stderr.decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if not _IGNORED_STDERR.match(line)), "")
        return InstanceGone(f"the desktop has ended{': ' + last[:300] if last else ''}")
