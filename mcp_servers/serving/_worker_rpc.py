"""A line between two processes of one server: either end asks, the other one answers piece by piece."""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import IntEnum
from functools import partial
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from runtimes import FrameError, FrameReader, pack_frame

__all__ = ["Asked", "Line", "LineBroken"]

logger = logging.getLogger(__name__)

M = TypeVar("M")

_CHUNK_BYTES = 1 << 18

WINDOW = 16
"""Pieces of one answer that may be on their way: who is slow to take them holds back nobody but who sends them."""


class LineBroken(Exception):
    """The other end is gone, or failed to answer."""


class _Kind(IntEnum):
    ASK = 0
    PIECE = 1
    TAKEN = 2
    END = 3
    FAILED = 4
    GIVEN_UP = 5


class _Frame(msgspec.Struct, Generic[M], array_like=True):
    kind: int
    number: int
    body: M | None = None


class Asked(Generic[M]):
    """A question of the other end, while it is answered."""

    def __init__(self, send: Callable[[M], Awaitable[None]]) -> None:
        self._send = send
        self._room = anyio.Semaphore(WINDOW)
        self.given_up = anyio.Event()
        """Set when nobody wants the answer any more."""

    async def answer(self, piece: M) -> None:
        """Send a piece of the answer; waits while too many are on their way."""
        await self._room.acquire()
        if self.given_up.is_set():
            self._room.release()
            return
        await self._send(piece)

    @asynccontextmanager
    async def wanted(self) -> AsyncGenerator[None]:
        """Cancel what is inside when the question is given up."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self.given_up.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            yield
            group.cancel_scope.cancel()

    def taken(self) -> None:
        """One piece has arrived."""
        self._room.release()

    def give_up(self) -> None:
        """Nobody wants the answer any more."""
        self.given_up.set()
        self._room.release()


class _Answers(Generic[M]):
    """The pieces of an answer, as they come."""

    def __init__(self) -> None:
        self.coming, self.pieces = anyio.create_memory_object_stream[M](math.inf)
        self.complete = False
        self.ended = False


class Line(Generic[M]):
    """One end of a line on which both ends ask questions of type `M` and answer with pieces of type `M`."""

    def __init__(self, kind: type[M], handle: Callable[[M, Asked[M]], Awaitable[None]]) -> None:
        """Make an end; `run` connects it.

        :param kind: the type of all messages, a union of tagged structs.
        :param handle: answers a question of the other end.
        """
        self._handle = handle
        self._decoder = msgspec.msgpack.Decoder(_Frame[kind])
        self._encoder = msgspec.msgpack.Encoder()
        self._answered: dict[int, _Answers[M]] = {}
        self._asked: dict[int, Asked[M]] = {}
        self._last = 0
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, sock: socket.socket, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Talk over the socket until the other end is gone; what it has asked is given up then."""
        reader, self._writer = await asyncio.open_unix_connection(sock=sock)
        frames = FrameReader(partial(reader.read, _CHUNK_BYTES))
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                with contextlib.suppress(FrameError, ConnectionError):
                    while (payload := await frames.read()) is not None:
                        self._take(self._decoder.decode(payload), group.start_soon)
                group.cancel_scope.cancel()
        finally:
            self._writer.close()
            self._writer = None
            for answers in self._answered.values():
                answers.coming.close()

    @asynccontextmanager
    async def ask(self, question: M) -> AsyncGenerator[AsyncGenerator[M]]:
        """Ask; inside, the pieces of the answer are to be had. Leaving early gives the question up.

        Taking a piece raises `LineBroken` if the other end is gone.
        """
        self._last += 1
        number, answers = self._last, _Answers[M]()
        self._answered[number] = answers
        try:
            await self._send(_Frame(_Kind.ASK, number, question))
            yield self._pieces(number, answers)
        finally:
            del self._answered[number]
            answers.coming.close()
            answers.pieces.close()
            if not answers.ended:
                self._write(_Frame(_Kind.GIVEN_UP, number))

    async def _pieces(self, number: int, answers: _Answers[M]) -> AsyncGenerator[M]:
        async for piece in answers.pieces:
            if not answers.ended:
                self._write(_Frame(_Kind.TAKEN, number))
            yield piece
        if not answers.complete:
            raise LineBroken

    def _take(self, frame: _Frame[M], start: Callable[..., object]) -> None:
        kind, number = frame.kind, frame.number
        if kind == _Kind.ASK and frame.body is not None:
            asked = self._asked[number] = Asked(lambda piece: self._send(_Frame(_Kind.PIECE, number, piece)))
            start(self._answer, number, frame.body, asked)
        elif kind in (_Kind.TAKEN, _Kind.GIVEN_UP):
            if (asked := self._asked.get(number)) is not None:
                (asked.taken if kind == _Kind.TAKEN else asked.give_up)()
        elif (answers := self._answered.get(number)) is not None:
            if kind == _Kind.PIECE and frame.body is not None:
                answers.coming.send_nowait(frame.body)
                return
            answers.ended, answers.complete = True, kind == _Kind.END
            answers.coming.close()

    async def _answer(self, number: int, question: M, asked: Asked[M]) -> None:
        end = _Kind.FAILED
        try:
            await self._handle(question, asked)
            end = _Kind.END
        except LineBroken:
            return  # whom the answer depends on is gone; the other end learns that it is not complete
        except Exception:  # boundary: one question's trouble is not that of the others
            logger.exception("a %s could not be answered", type(question).__name__)
        finally:
            del self._asked[number]
            self._write(_Frame(end, number))

    async def _send(self, frame: _Frame[M]) -> None:
        self._write(frame)
        if self._writer is None:
            raise LineBroken
        try:
            await self._writer.drain()
        except ConnectionError:
            raise LineBroken from None

    def _write(self, frame: _Frame[M]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_frame(self._encoder.encode(frame)))
