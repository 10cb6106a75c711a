"""Asking the driver of a desktop, many questions at a time, over the pipes of one command."""

import re
from itertools import count

import anyio

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._protocol import Stream
from runtimes.desktop.inside._wire import HEAD, Message, pack, sizes, unpack

__all__ = ["Link"]

_KEPT = 4096
_NOISE = re.compile(r"^(_XSERV|Openbox-|The XKEYBOARD|>|Errors from|Could not|\s*$)")


class Link:
    """Questions and answers. Whoever waits for an answer reads those of the others too."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._turn = anyio.Lock()
        self._numbers = count(1)
        self._data = bytearray()
        self._answers: dict[int, tuple[Message, bytes]] = {}
        self._waiting: set[int] = set()
        self._said = b""
        self._ended = False

    async def start(self, first: bytes) -> None:
        """Give the driver its code and wait until the desktop is there.

        :raises InstanceGone: if it did not start; with what it said last.
        """
        self._waiting.add(0)
        try:
            await self._stream.send(first)
        except BrokenPipeError:
            self._ended = True
        await self._answer(0)

    async def ask(self, op: str, **details: object) -> tuple[Message, bytes]:
        """Ask and wait for the answer.

        :raises InstanceGone: if the desktop has ended.
        :raises ValueError: if the driver says that it can't be meant so.
        :raises RuntimeFailure: if it could not do it.
        """
        number = next(self._numbers)
        self._waiting.add(number)
        try:
            await self._stream.send(pack({"id": number, "op": op, **details}))
            message, data = await self._answer(number)
        except BrokenPipeError:
            self._ended = True
            raise self._gone() from None
        finally:
            self._waiting.discard(number)
            self._answers.pop(number, None)
        if "error" in message:
            kind = ValueError if message["error"] == "value" else RuntimeFailure
            raise kind(str(message.get("detail", ""))[:500])
        return message, data

    async def close(self) -> None:
        """End the driver, the X server and all applications."""
        self._ended = True
        await self._stream.kill()
        await self._stream.__aexit__(None, None, None)

    async def _answer(self, number: int) -> tuple[Message, bytes]:
        while True:
            async with self._turn:
                if number in self._answers:
                    return self._answers.pop(number)
                if self._ended:
                    raise self._gone()
                await self._receive()

    async def _receive(self) -> None:
        pieces = self._stream.receive()
        try:
            name, data = await anext(pieces)
        except StopAsyncIteration:
            self._ended = True
            return
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        if name == "stderr":
            self._said = (self._said + data)[-_KEPT:]
            return
        self._data += data
        try:
            while self._take_frame():
                pass
        except ValueError:
            # Whatever runs inside may have taken the driver's place: it is not listened to any longer.
            self._ended = True
            await self._stream.kill()

    def _take_frame(self) -> bool:
        if len(self._data) < HEAD:
            return False
        text, data = sizes(bytes(self._data[:HEAD]))
        end = HEAD + text + data
        if len(self._data) < end:
            return False
        message = unpack(bytes(self._data[HEAD : HEAD + text]))
        number = message.get("id")
        if isinstance(number, int) and number in self._waiting:
            self._answers[number] = message, bytes(self._data[HEAD + text : end])
        del self._data[:end]
        return True

    def _gone(self) -> InstanceGone:
        lines = self._said.decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if not _NOISE.match(line)), "")
        return InstanceGone(f"the desktop has ended{': ' + last[:300] if last else ''}")
