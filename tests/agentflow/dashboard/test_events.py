"""News of runs: shared by all viewers, and ended with the server."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from agentflow.dashboard import open_view
from agentflow.dashboard._server import POLL_SECONDS, ChangeFeed, SharedAnswers, change_events
from agentflow.errors import ConfigurationError
from agentflow.inspection import RunChanges, open_runs
from agentflow.journal import NewSeed, open_journal, this_process
from tests.agentflow.dashboard._access import use_link


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _News:
    """Run of which a new entry is committed now and then."""

    def __init__(self) -> None:
        self.last = 0
        self.asked: list[str] = []
        self.broken = False

    async def read(self, cursor: str) -> RunChanges:
        self.asked.append(cursor)
        if self.broken:
            raise ConfigurationError("journal.db: can't be read: database is locked")
        moved = bool(cursor) and cursor != str(self.last)
        return RunChanges(cursor=str(self.last), summary=moved)


@pytest.mark.promise("view:shared")
async def test_ten_viewers_that_begin_at_different_times_ask_a_run_once_in_each_interval() -> None:
    news, clock = _News(), _Clock()
    feed = ChangeFeed(news.read, clock=clock)
    cursors = [""] * 10
    for interval in range(5):
        news.last = interval
        for viewer in range(10):
            # Each at its own moment of the interval.
            clock.now = interval * POLL_SECONDS + viewer * POLL_SECONDS / 20
            cursors[viewer] = (await feed.after(cursors[viewer])).cursor
        assert set(cursors) == {str(interval)}
    assert len(news.asked) == 5


@pytest.mark.promise("view:shared")
async def test_viewers_share_an_answer_of_one_state_and_none_that_is_older_than_their_news() -> None:
    clock, made = _Clock(), [0]
    shared = SharedAnswers(clock=clock)
    may_read = anyio.Event()

    async def read() -> bytes:
        made[0] += 1
        number = made[0]
        await may_read.wait()
        return str(number).encode()

    answers: list[bytes] = []

    async def view(state: str | None) -> None:
        answers.append(await shared.load("r/a/seeds?", state, read))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(view, "one")
        await anyio.wait_all_tasks_blocked()
        may_read.set()
    assert answers == [b"1"] * 10
    await view("two")
    await view("two")
    clock.now += 10
    await view("two")
    # Nobody knows the state of a run that nobody watches.
    await view(None)
    await view(None)
    assert answers[10:] == [b"2", b"2", b"3", b"4", b"5"]


@pytest.mark.promise("view:shared")
async def test_a_failed_answer_is_asked_again_and_the_oldest_large_ones_are_forgotten() -> None:
    shared = SharedAnswers(clock=_Clock())
    asked: list[str] = []

    def of(text: str, size: int) -> Callable[[], Awaitable[bytes]]:
        async def read() -> bytes:
            asked.append(text)
            if size < 0:
                raise ConfigurationError(text)
            return bytes(size)

        return read

    for _ in range(2):
        with pytest.raises(ConfigurationError):
            await shared.load("broken", "state", of("broken", -1))
    for path in ("one", "other", "other", "one"):
        await shared.load(path, "state", of(path, 9 << 20))
    assert asked == ["broken", "broken", "one", "other", "one"]


@pytest.mark.promise("view:outage")
async def test_a_run_that_can_not_be_read_for_a_while_is_one_event_and_nothing_is_missed() -> None:
    news, clock = _News(), _Clock()
    closing = anyio.Event()
    events = change_events(ChangeFeed(news.read, clock=clock), "0", closing)

    async def next_event() -> dict[str, Any]:
        while True:
            clock.now += 1
            event = await anext(events)
            if event.startswith(b"event: "):
                data = event.partition(b"data: ")[2]
                return {"event": event.split()[1].decode(), **json.loads(data)}

    news.broken = True
    with anyio.fail_after(60):
        trouble = await next_event()
        assert trouble == {"event": "trouble", "error": "journal.db: can't be read: database is locked"}
        news.broken, news.last = False, 7
        change = await next_event()
        assert (change["event"], change["cursor"], change["summary"]) == ("change", "7", True)
        closing.set()
        assert [event async for event in events] == []


@pytest.mark.promise("view:shutdown")
async def test_a_server_ends_while_pages_are_open(finished: Path) -> None:
    streams: list[aiohttp.ClientResponse] = []
    async with aiohttp.ClientSession() as client:
        with open_runs(finished) as runs, anyio.fail_after(30):
            async with open_view(runs) as view:
                headers = await anyio.to_thread.run_sync(use_link, view.link())
                for _ in range(10):
                    path = f"{view.url}/api/r/{runs.runs()[0].id}/events"
                    timeout = aiohttp.ClientTimeout(total=None)
                    streams.append(await client.get(path, headers=headers, timeout=timeout))
            for stream in streams:
                # Ended, not torn: the browser gets everything that was sent.
                assert (await stream.read()).endswith(b"\n\n")


@pytest.mark.promise("view:live")
async def test_a_page_is_told_that_its_run_has_stopped(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    gone = this_process().rpartition(":")[0] + ":1"
    async with open_journal(file) as journal:
        run = await journal.open_run("lighthouses", {})
        await run.add_seeds([NewSeed("Lighthouses")])
        await run.claim(this_process(), 1)
        with open_runs(file) as runs:
            reader = runs.run(runs.runs()[0].id)
            assert reader.summary().state == "running"
            cursor = reader.changes().cursor
            assert not reader.changes(cursor).summary
            # The same seed is held as before, but by a process that was killed.
            await run.release(this_process())
            await run.claim(gone, 1)
            news = reader.changes(cursor)
            assert (news.summary, news.seeds, reader.summary().state) == (True, ("seed_001",), "stopped")
            assert not reader.changes(news.cursor).summary
