"""Asking the driver of a desktop, many questions at a time, over the pipes of one command."""

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

__all__ = ["Link"]

_KEPT = 4096
_NOISE = re.compile(r"^(_XSERV|Openbox-|The XKEYBOARD|>|Errors from|Could not|\s*$)")


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits for an answer."""

    answer: tuple[Message, bytes] | None = None
    poked: anyio.Event = field(default_factory=anyio.Event)
    """The answer is there, or it is this one's turn to read."""
    sent: bool = False
    """The question is: from now on it can be this one's turn."""


class Link:
    """Questions and answers. One of those who wait reads for all of them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._frames = FrameDecoder(LARGEST)
        self._waiting: dict[int, _Waiting] = {}
        self._reading = False
        self._said = b""
        self._ended = False

    async def start(self, first: bytes) -> None:
        """Give the driver its code and wait until the desktop is there.

        :raises InstanceGone: if it did not start; with what it said last.
        """
        with suppress(BrokenPipeError):
            await self._stream.send(first)
        await self._answer(0, _Waiting())

    async def ask(self, op: str, **details: object) -> tuple[Message, bytes]:
        """Ask and wait for the answer.

        :raises InstanceGone: if the desktop has ended.
        :raises ValueError: if the driver says that it can't be meant so.
        :raises RuntimeFailure: if it could not do it.
        """
        number, waiting = next(self._numbers), _Waiting()
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

    async def _answer(self, number: int, waiting: _Waiting) -> tuple[Message, bytes]:
        self._waiting[number] = waiting
        waiting.sent = True
        try:
            while waiting.answer is None:
                if self._ended:
                    raise self._gone()
                if self._reading:
                    await waiting.poked.wait()
                    waiting.poked = anyio.Event()
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
                self._poke()

    def _poke(self) -> None:
        """Make somebody else read; all of them learn of the end."""
        for other in self._waiting.values():
            if other.sent and other.answer is None:
                other.poked.set()
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
            self._said = (self._said + data)[-_KEPT:]
            return
        self._frames.feed(data)
        try:
            for payload in self._frames:
                self._take(payload)
        except ValueError:
            # Whatever runs inside may have taken the driver's place: it is not listened to any longer.
            self._ended = True
            await self._stream.kill()

    def _take(self, payload: bytes) -> None:
        message, data = unpack(payload)
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None:
            waiting.answer = message, data
            waiting.poked.set()

    def _gone(self) -> InstanceGone:
        lines = self._said.decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if not _NOISE.match(line)), "")
        return InstanceGone(f"the desktop has ended{': ' + last[:300] if last else ''}")
