"""RPC over a socket between two processes of one server: both ends send requests and stream answers."""

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

logger = logging.getLogger(__name__)

M = TypeVar("M")

_CHUNK_BYTES = 1 << 18

WINDOW = 16
"""Unacknowledged items per answer; a slow receiver delays only the answer that it reads."""


class ConnectionLost(Exception):
    """The other end is gone or failed to answer."""


class _Kind(IntEnum):
    REQUEST = 0
    ITEM = 1
    ACK = 2
    END = 3
    FAILED = 4
    ABANDONED = 5


class Frame(msgspec.Struct, Generic[M], array_like=True):
    """One frame of the connection."""

    kind: int
    number: int
    body: M | None = None


class RpcRequest(Generic[M]):
    """A request of the other end while it is being answered."""

    def __init__(self, send: Callable[[M], Awaitable[None]]) -> None:
        self._send = send
        self._room = anyio.Semaphore(WINDOW)
        self.abandoned = anyio.Event()
        """Set when the other end no longer wants the answer."""

    async def answer(self, item: M) -> None:
        """Send one item of the answer; waits while too many are unacknowledged."""
        await self._room.acquire()
        if self.abandoned.is_set():
            self._room.release()
            return
        await self._send(item)

    @asynccontextmanager
    async def cancelled_if_abandoned(self) -> AsyncGenerator[None]:
        """Cancel the block when the request is abandoned."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self.abandoned.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            yield
            group.cancel_scope.cancel()

    def acknowledge(self) -> None:
        """Record that one item has arrived."""
        self._room.release()

    def abandon(self) -> None:
        """Record that the answer is no longer wanted."""
        self.abandoned.set()
        self._room.release()


class _Response(Generic[M]):
    """The items of an answer as they arrive."""

    def __init__(self) -> None:
        self.sender, self.items = anyio.create_memory_object_stream[M](math.inf)
        self.complete = False
        self.ended = False


class RpcConnection(Generic[M]):
    """One end of a connection on which both ends send requests of type `M` and stream answers of type `M`."""

    def __init__(self, frame: type[Frame[M]], handle: Callable[[M, RpcRequest[M]], Awaitable[None]]) -> None:
        """Create an end; `run` connects it.

        :param frame: `Frame[M]`; `M` is a union of tagged structs.
        :param handle: answers a request of the other end.
        """
        self._handle = handle
        self._decoder = msgspec.msgpack.Decoder(frame)
        self._encoder = msgspec.msgpack.Encoder()
        self._responses: dict[int, _Response[M]] = {}
        self._requests: dict[int, RpcRequest[M]] = {}
        self._last = 0
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, sock: socket.socket, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Communicate over the socket until the other end is gone; its requests are then abandoned."""
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
            for response in self._responses.values():
                response.sender.close()

    @asynccontextmanager
    async def ask(self, request: M) -> AsyncGenerator[AsyncGenerator[M]]:
        """Send a request; the block iterates over the answer. Leaving the block early abandons the request.

        Receiving an item raises `ConnectionLost` if the other end is gone.
        """
        self._last += 1
        number, response = self._last, _Response[M]()
        self._responses[number] = response
        try:
            await self._send(Frame(_Kind.REQUEST, number, request))
            yield self._pieces(number, response)
        finally:
            del self._responses[number]
            response.sender.close()
            response.items.close()
            if not response.ended:
                self._write(Frame(_Kind.ABANDONED, number))

    async def _pieces(self, number: int, response: _Response[M]) -> AsyncGenerator[M]:
        async for item in response.items:
            if not response.ended:
                self._write(Frame(_Kind.ACK, number))
            yield item
        if not response.complete:
            raise ConnectionLost

    def _take(self, frame: Frame[M], start: Callable[..., object]) -> None:
        kind, number = frame.kind, frame.number
        if kind == _Kind.REQUEST and frame.body is not None:
            reply = self._requests[number] = RpcRequest(
                lambda item: self._send(Frame(_Kind.ITEM, number, item))
            )
            start(self._answer, number, frame.body, reply)
        elif kind in (_Kind.ACK, _Kind.ABANDONED):
            if (reply := self._requests.get(number)) is not None:
                (reply.acknowledge if kind == _Kind.ACK else reply.abandon)()
        elif (response := self._responses.get(number)) is not None:
            if kind == _Kind.ITEM and frame.body is not None:
                response.sender.send_nowait(frame.body)
                return
            response.ended, response.complete = True, kind == _Kind.END
            response.sender.close()

    async def _answer(self, number: int, request: M, reply: RpcRequest[M]) -> None:
        end = _Kind.FAILED
        try:
            await self._handle(request, reply)
            end = _Kind.END
        except ConnectionLost:
            return  # the answer depended on a process that is gone; the other end learns that it is incomplete
        except Exception:  # boundary: a failing request must not affect the others
            logger.exception("answering a %s failed", type(request).__name__)
        finally:
            del self._requests[number]
            self._write(Frame(end, number))

    async def _send(self, frame: Frame[M]) -> None:
        self._write(frame)
        if self._writer is None:
            raise ConnectionLost
        try:
            await self._writer.drain()
        except ConnectionError:
            raise ConnectionLost from None

    def _write(self, frame: Frame[M]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_frame(self._encoder.encode(frame)))
