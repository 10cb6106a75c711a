"""A line between two processes: questions both ways, answers piece by piece."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias, cast

import anyio
import msgspec
import pytest

from mcp_servers.serving._worker_rpc import WINDOW, Asked, Line, LineBroken


class Ask(msgspec.Struct, tag=True):
    """A question."""

    text: str
    """What is asked."""


class Piece(msgspec.Struct, tag=True):
    """A piece of an answer."""

    number: int
    """Which."""


Word: TypeAlias = Ask | Piece
Handler: TypeAlias = Callable[[Word, Asked[Word]], Awaitable[None]]
WORD = cast("type[Word]", Word)


async def silent(question: Word, asked: Asked[Word]) -> None:
    """Answer with nothing."""


@asynccontextmanager
async def connected(
    handle: Handler, other: Handler = silent
) -> AsyncGenerator[tuple[Line[Word], Line[Word]]]:
    """Two ends, of which the first one's questions are answered by `handle`."""
    ours, theirs = socket.socketpair()
    one, two = Line[Word](WORD, other), Line[Word](WORD, handle)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(one.run, ours)
            await group.start(two.run, theirs)
            yield one, two
            group.cancel_scope.cancel()


async def count(question: Word, asked: Asked[Word]) -> None:
    """Answer with as many pieces as are asked for."""
    assert isinstance(question, Ask)
    for number in range(int(question.text)):
        await asked.answer(Piece(number))


async def whole(line: Line[Word], text: str) -> list[Word]:
    """A whole answer."""
    async with line.ask(Ask(text)) as pieces:
        return [piece async for piece in pieces]


@pytest.mark.promise("mcp:workers:line")
async def test_both_ends_ask_at_once_and_each_answer_comes_in_order() -> None:
    answers: dict[str, list[Word]] = {}

    async def ask(name: str, line: Line[Word], text: str) -> None:
        answers[name] = await whole(line, text)

    async with connected(count, count) as (one, two), anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(ask, f"one {number}", one, str(number * 30))
            group.start_soon(ask, f"two {number}", two, str(number * 30))
    for number in range(5):
        assert answers[f"one {number}"] == answers[f"two {number}"] == [*map(Piece, range(number * 30))]


@pytest.mark.promise("mcp:workers:line")
async def test_who_does_not_take_an_answer_holds_back_who_sends_it_and_nobody_else() -> None:
    sent = 0

    async def much(question: Word, asked: Asked[Word]) -> None:
        nonlocal sent
        if question == Ask("little"):
            return await asked.answer(Piece(7))
        while True:
            await asked.answer(Piece(sent))
            sent += 1

    async with connected(much) as (one, _), one.ask(Ask("much")) as pieces:
        assert await anext(pieces) == Piece(0)
        assert await whole(one, "little") == [Piece(7)]
        await anyio.wait_all_tasks_blocked()
        assert sent <= WINDOW + 1


@pytest.mark.promise("mcp:workers:line")
async def test_leaving_early_tells_the_other_end_and_frees_it() -> None:
    ended = anyio.Event()

    async def endless(question: Word, asked: Asked[Word]) -> None:
        async with asked.wanted():
            while True:
                await asked.answer(Piece(0))
                await anyio.lowlevel.checkpoint()
        ended.set()

    async with connected(endless) as (one, _):
        async with one.ask(Ask("")) as pieces:
            assert await anext(pieces) == Piece(0)
        await ended.wait()


@pytest.mark.promise("mcp:workers:line")
async def test_an_end_that_is_gone_or_fails_breaks_what_was_asked_of_it() -> None:
    async def fail(question: Word, asked: Asked[Word]) -> None:
        await asked.answer(Piece(1))
        raise ZeroDivisionError

    async with connected(fail) as (one, _), one.ask(Ask("")) as pieces:
        assert await anext(pieces) == Piece(1)
        with pytest.raises(LineBroken):
            await anext(pieces)

    ours, theirs = socket.socketpair()
    line = Line[Word](WORD, silent)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(line.run, ours)
            async with line.ask(Ask("")) as pieces:
                theirs.close()
                with pytest.raises(LineBroken):
                    await anext(pieces)
    with pytest.raises(LineBroken):
        await whole(line, "")
