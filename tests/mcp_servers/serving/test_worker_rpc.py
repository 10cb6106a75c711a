"""RPC between two processes: requests in both directions, streamed answers."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import msgspec
import pytest

from mcp_servers.serving._worker_rpc import WINDOW, ConnectionLost, Frame, RpcConnection, RpcRequest


class Ask(msgspec.Struct, tag=True):
    """A request."""

    text: str
    """Its content."""


class Piece(msgspec.Struct, tag=True):
    """An item of an answer."""

    number: int
    """Its number."""


Word: TypeAlias = Ask | Piece
Handler: TypeAlias = Callable[[Word, RpcRequest[Word]], Awaitable[None]]


async def silent(request: Word, reply: RpcRequest[Word]) -> None:
    """Answer with nothing."""


@asynccontextmanager
async def connected(
    handle: Handler, other: Handler = silent
) -> AsyncGenerator[tuple[RpcConnection[Word], RpcConnection[Word]]]:
    """Connect two ends; `handle` answers the requests of the first."""
    ours, theirs = socket.socketpair()
    one, two = RpcConnection(Frame[Word], other), RpcConnection(Frame[Word], handle)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(one.run, ours)
            await group.start(two.run, theirs)
            yield one, two
            group.cancel_scope.cancel()


async def count(request: Word, reply: RpcRequest[Word]) -> None:
    """Answer with the requested number of items."""
    assert isinstance(request, Ask)
    for number in range(int(request.text)):
        await reply.answer(Piece(number))


async def whole(connection: RpcConnection[Word], text: str) -> list[Word]:
    """Return a whole answer."""
    async with connection.ask(Ask(text)) as items:
        return [item async for item in items]


@pytest.mark.promise("mcp:workers:rpc")
async def test_both_ends_send_requests_concurrently_and_each_answer_arrives_in_order() -> None:
    response: dict[str, list[Word]] = {}

    async def ask(name: str, connection: RpcConnection[Word], text: str) -> None:
        response[name] = await whole(connection, text)

    async with connected(count, count) as (one, two), anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(ask, f"one {number}", one, str(number * 30))
            group.start_soon(ask, f"two {number}", two, str(number * 30))
    for number in range(5):
        assert response[f"one {number}"] == response[f"two {number}"] == [*map(Piece, range(number * 30))]


@pytest.mark.promise("mcp:workers:rpc")
async def test_a_slow_receiver_delays_only_its_own_answer() -> None:
    sent = 0

    async def much(request: Word, reply: RpcRequest[Word]) -> None:
        nonlocal sent
        if request == Ask("little"):
            return await reply.answer(Piece(7))
        while True:
            await reply.answer(Piece(sent))
            sent += 1

    async with connected(much) as (one, _), one.ask(Ask("much")) as items:
        assert await anext(items) == Piece(0)
        assert await whole(one, "little") == [Piece(7)]
        await anyio.wait_all_tasks_blocked()
        assert sent <= WINDOW + 1


@pytest.mark.promise("mcp:workers:rpc")
async def test_leaving_early_abandons_the_request_at_the_other_end() -> None:
    ended = anyio.Event()

    async def endless(request: Word, reply: RpcRequest[Word]) -> None:
        async with reply.cancelled_if_abandoned():
            while True:
                await reply.answer(Piece(0))
                await anyio.lowlevel.checkpoint()
        ended.set()

    async with connected(endless) as (one, _):
        async with one.ask(Ask("")) as items:
            assert await anext(items) == Piece(0)
        await ended.wait()


@pytest.mark.promise("mcp:workers:rpc")
async def test_a_lost_or_failing_end_fails_its_open_requests() -> None:
    async def fail(request: Word, reply: RpcRequest[Word]) -> None:
        await reply.answer(Piece(1))
        raise ZeroDivisionError

    async with connected(fail) as (one, _), one.ask(Ask("")) as items:
        assert await anext(items) == Piece(1)
        with pytest.raises(ConnectionLost):
            await anext(items)

    ours, theirs = socket.socketpair()
    connection = RpcConnection(Frame[Word], silent)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(connection.run, ours)
            async with connection.ask(Ask("")) as items:
                theirs.close()
                with pytest.raises(ConnectionLost):
                    await anext(items)
    with pytest.raises(ConnectionLost):
        await whole(connection, "")
