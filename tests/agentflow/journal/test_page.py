"""Waiting and durability of a page."""

import anyio
import pytest

from agentflow.errors import RunStopped, StopCause
from agentflow.journal import MemoryPage, NewSeed, Run
from agentflow.journal._page import BEHIND
from tests._pages import SlowDisk


@pytest.mark.promise("journal:page:noted")
async def test_note_returns_at_once_below_the_limit_and_settle_waits_for_all() -> None:
    disk, done = SlowDisk(), list[str]()
    for number in range(BEHIND):
        await disk.page.note(str(number), number)
    assert disk.page.recall("0", int) == 0

    async def note() -> None:
        await disk.page.note("one too many", 1)
        done.append("noted")

    async def settle() -> None:
        await disk.page.settle()
        done.append("settled")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note)
        await anyio.wait_all_tasks_blocked()
        assert (len(disk.writing), done) == (BEHIND + 1, [])
        disk.writing[0].set_result(None)
        tasks.start_soon(settle)
        await anyio.wait_all_tasks_blocked()
        assert done == ["noted"]
        disk.catch_up()
    assert done == ["noted", "settled"]


@pytest.mark.promise("journal:page:noted")
async def test_a_failed_write_is_reported_to_the_next_caller() -> None:
    disk = SlowDisk()
    await disk.page.note("a", 1)
    disk.writing[0].set_exception(RunStopped(StopCause.JOURNAL, "the disk is full"))
    for _ in range(2):
        with pytest.raises(RunStopped, match="the disk is full"):
            await disk.page.note("b", 2)
    assert "b" not in disk.page
    with pytest.raises(RunStopped, match="the disk is full"):
        await disk.page.settle()


@pytest.mark.promise("journal:page:noted")
async def test_a_section_waits_like_its_page() -> None:
    disk = SlowDisk()
    section = disk.page.section("s")
    await section.note("a", 1)
    with anyio.move_on_after(0) as waiting:
        await disk.page.settle()
    assert waiting.cancelled_caught
    disk.catch_up()
    await disk.page.settle()
    await section.settle()


@pytest.mark.promise("journal:page:noted")
async def test_a_seed_whose_last_note_was_refused_does_not_finish(run: Run) -> None:
    (seed,) = await run.add_seeds([NewSeed("a")])
    await (await run.open_page(seed)).record("act/0", "this")
    other = await run.open_page(seed)
    await other.note("act/0", "something else")
    with pytest.raises(RunStopped, match="act/0 of the seed with index 0 has another result already"):
        await run.finish(seed, b"")
    assert (await run.counts()).done == 0


async def test_a_page_in_memory_keeps_results_as_objects_under_the_keys_of_its_sections() -> None:
    page = MemoryPage()
    result = object()
    await page.section("try1").note("plan", result)
    await page.record("done", True)
    assert page.recall("try1/plan", object) is result
    assert page.section("try1").recall("plan", object) is result
    assert list(page.section("try1").keys()) == ["plan"]
    assert list(page.keys()) == ["try1/plan", "done"]
    assert "plan" in page.section("try1")
    assert "plan" not in page
