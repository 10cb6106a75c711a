"""Pages, harvests, blobs and usage of a run."""

from functools import partial
from hashlib import sha256

import anyio
import anyio.lowlevel
import pytest
from msgspec import Struct

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.journal import Journal, NewSeed, Run, SeedTaken, open_journal
from agentflow.trace import Seed, Usage


class Note(Struct, frozen=True):
    """Something to record."""

    text: str


async def one_seed(run: Run) -> Seed:
    return (await run.add_seeds([NewSeed("a")]))[0]


@pytest.mark.promise("journal:page:kept")
async def test_results_are_on_the_page_in_the_order_of_writing(url: str) -> None:
    texts = ["z", "", "line\nline", "nul \0 nul", "ünï 🌱", "x" * 300_000]
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        seed = await one_seed(run)
        page = await run.open_page(seed)
        for number, text in enumerate(texts):
            await page.record(f"k/{9 - number}", Note(text))
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        page = await run.open_page(seed)
        assert list(page.keys()) == [f"k/{9 - number}" for number in range(len(texts))]
        keys = list(page.keys())
        assert [page.recall(key, Note) for key in keys] == [Note(text) for text in texts]
        await page.record("last", Note(""))
        assert list((await run.open_page(seed)).keys())[-1] == "last"


@pytest.mark.promise("journal:page:once")
async def test_recorded_results_are_not_computed_again(run: Run) -> None:
    seed = await one_seed(run)
    made: list[str] = []

    async def make() -> Note:
        made.append("made")
        return Note("result")

    for _ in range(2):
        page = await run.open_page(seed)
        assert await page.once("act/0", Note, make) == Note("result")
        assert await page.once("act/0", Note, make) == Note("result")
    assert made == ["made"]


@pytest.mark.promise("journal:page:once")
async def test_a_reopened_page_of_a_claimed_seed_has_its_results(run: Run) -> None:
    await one_seed(run)
    (seed,) = await run.claim("me", 1)
    await (await run.open_page(seed)).record("act/0", Note("result"))
    assert (await run.open_page(seed)).recall("act/0", Note) == Note("result")


@pytest.mark.promise("journal:page:kept")
async def test_a_result_is_kept_even_if_its_caller_is_cancelled(run: Run) -> None:
    seed = await one_seed(run)
    page = await run.open_page(seed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(page.record, "act/0", Note("result"))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await (await run.open_page(seed)).record("act/1", Note("later"))
    assert list((await run.open_page(seed)).keys()) == ["act/0", "act/1"]


@pytest.mark.promise("journal:page:once")
async def test_recording_the_same_result_twice_is_accepted_and_another_one_is_refused(run: Run) -> None:
    seed = await one_seed(run)
    one, other = await run.open_page(seed), await run.open_page(seed)
    await one.record("act/0", Note("result"))
    await other.record("act/0", Note("result"))
    with pytest.raises(
        RunStopped, match=r"^journal: act/0 of the seed with index 0 has another result already$"
    ):
        await other.record("act/0", Note("another"))
    assert (await run.open_page(seed)).recall("act/0", Note) == Note("result")


@pytest.mark.promise("journal:page:once")
@pytest.mark.parametrize("writers", [7, 500])
async def test_a_refused_entry_of_a_batch_does_not_prevent_the_others(run: Run, writers: int) -> None:
    seed = await one_seed(run)
    page = await run.open_page(seed)
    await page.record("act/3", Note("first"))
    refused: list[int] = []

    async def record(number: int) -> None:
        try:
            await page.record(f"act/{number}", Note(str(number)))
        except RunStopped:
            refused.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(writers):
            tasks.start_soon(record, number)
    assert refused == [3]
    page = await run.open_page(seed)
    assert {page.recall(f"act/{number}", Note) for number in range(writers)} == {
        Note("first" if number == 3 else str(number)) for number in range(writers)
    }


@pytest.mark.promise("journal:page:taken")
async def test_an_owner_that_lost_a_seed_can_neither_write_its_page_nor_finish_it(url: str) -> None:
    time = [0.0]
    async with open_journal(url, now=lambda: time[0]) as one, open_journal(url, now=lambda: time[0]) as two:
        slow, quick = await one.open_run("run", {}), await two.open_run("run", {})
        seed = await one_seed(slow)
        await slow.claim("slow", 1)
        page = await slow.open_page(seed)
        await page.record("act/0", Note("slow"))
        time[0] = 31
        await page.record("act/1", Note("late, but nobody else wanted it"))
        assert await quick.claim("quick", 1) == [seed]
        for number in range(2):
            with pytest.raises(SeedTaken, match="another process took over the seed with index 0"):
                await (page if number else await slow.open_page(seed)).record("act/2", Note("slow"))
        with pytest.raises(SeedTaken):
            await slow.finish(seed, b"slow")
        taken_over = await quick.open_page(seed)
        assert list(taken_over.keys()) == ["act/0", "act/1"]
        await taken_over.record("act/2", Note("quick"))
        await quick.finish(seed, b"quick")
        assert [found async for found in slow.stored_results()] == [(seed, b"quick")]


@pytest.mark.promise("journal:harvests")
async def test_results_are_returned_by_index_in_any_order_of_writing(run: Run) -> None:
    seeds = await run.add_seeds([NewSeed(str(number)) for number in range(50)])
    for seed in reversed(seeds[::2]):
        await run.finish(seed, f"harvest {seed.index}".encode())
    assert [found async for found in run.stored_results()] == [
        (seed, f"harvest {seed.index}".encode()) for seed in seeds[::2]
    ]
    assert await run.counts() == (25, 0, 25)


@pytest.mark.promise("journal:harvests")
async def test_a_finished_seed_keeps_its_page_and_can_not_be_claimed(run: Run) -> None:
    seed = await one_seed(run)
    await run.claim("me", 1)
    await (await run.open_page(seed)).record("act/0", Note("kept"))
    await run.finish(seed, b"done")
    assert await run.claim("me", 1) == []
    assert (await run.open_page(seed)).recall("act/0", Note) == Note("kept")


@pytest.mark.promise("journal:blobs")
async def test_blobs_are_stored_once_by_their_hash(run: Run) -> None:
    data = bytes(range(256)) * 1000
    blob = await run.blobs.put(data, "image/png")
    assert await run.blobs.put(data, "image/png") == blob
    assert blob.hash == sha256(data).hexdigest()
    assert blob.mime == "image/png"
    assert await run.blobs.read(blob.hash) == data
    with pytest.raises(KeyError):
        await run.blobs.read("0" * 64)


@pytest.mark.promise("journal:usage")
async def test_usage_of_successive_processes_adds_up(url: str) -> None:
    async def use(*totals: dict[str, Usage]) -> dict[str, Usage]:
        async with open_journal(url) as journal:
            run = await journal.open_run("run", {})
            before = await run.load_usage()
            for total in totals:
                await run.save_usage({role: before.get(role, Usage()) + used for role, used in total.items()})
            return await run.load_usage()

    assert await use() == {}
    assert await use({"planner": Usage(1, 10, 5)}, {"planner": Usage(2, 20, 10)}) == {
        "planner": Usage(2, 20, 10)
    }
    assert await use({"planner": Usage(1, 1, 1), "generator": Usage(3, 3, 3)}) == {
        "planner": Usage(3, 21, 11),
        "generator": Usage(3, 3, 3),
    }


@pytest.mark.promise("journal:usage")
async def test_an_empty_usage_entry_does_not_block_the_next(run: Run) -> None:
    await run.save_usage({})
    await run.save_usage({})
    await (await run.open_page(await one_seed(run))).record("k", Note("after"))


@pytest.mark.promise("journal:usage")
async def test_usage_of_concurrent_processes_adds_up(journal: Journal) -> None:
    one, two = await journal.open_run("run", {}), await journal.open_run("run", {})
    await one.load_usage()
    await two.load_usage()
    await one.save_usage({"planner": Usage(1, 1, 1)})
    await two.save_usage({"planner": Usage(2, 2, 2)})
    await one.save_usage({"planner": Usage(5, 5, 5)})
    assert await one.load_usage() == {"planner": Usage(7, 7, 7)}
    await one.save_usage({"planner": Usage(6, 6, 6)})
    assert await two.load_usage() == {"planner": Usage(8, 8, 8)}


@pytest.mark.promise("journal:run:apart")
async def test_runs_in_one_journal_are_isolated(journal: Journal) -> None:
    one, two = await journal.open_run("one", {}), await journal.open_run("two", {})
    seed = await one_seed(one)
    assert seed == await one_seed(two)
    await (await one.open_page(seed)).record("act/0", Note("one"))
    await one.blobs.put(b"x", "text/plain")
    await one.finish(seed, b"one")
    assert list((await two.open_page(seed)).keys()) == []
    assert await two.counts() == (1, 0, 0)
    with pytest.raises(KeyError):
        await two.blobs.read(sha256(b"x").hexdigest())


@pytest.mark.promise("journal:harvests")
async def test_a_page_can_be_read_by_key_prefix_without_a_claim(run: Run) -> None:
    seed = await one_seed(run)
    await run.claim("me", 1)
    page = await run.open_page(seed)
    await page.record("act/0", Note("kept"))
    await page.record("actor/0", Note("another"))
    await run.finish(seed, b"done")
    read = await run.read_page(seed, "act/")
    assert list(read.keys()) == ["act/0"]
    assert read.recall("act/0", Note) == Note("kept")


@pytest.mark.promise("journal:commands")
async def test_a_pause_reaches_all_processes_of_a_run_also_later_ones(journal: Journal) -> None:
    one, other = await journal.open_run("one", {}), await journal.open_run("other", {})
    await journal.pause_run("one", paused=True)
    later = await journal.open_run("one", {})
    assert await one.commands() == await later.commands() == (True, False)
    assert await other.commands() == (False, False)
    await journal.pause_run("one", paused=False)
    assert await one.commands() == await later.commands() == (False, False)


@pytest.mark.promise("journal:commands")
async def test_a_stop_ends_a_launch_for_good_and_a_later_launch_resumes_the_run(journal: Journal) -> None:
    first = await journal.open_run("run", {}, launch="first")
    by_hand = await journal.open_run("run", {})
    await journal.pause_run("run", paused=True)
    await journal.stop_run("run")
    restarted = await journal.open_run("run", {}, launch="first")
    assert await first.commands() == await by_hand.commands() == await restarted.commands() == (False, True)
    for launch in ("second", None):
        assert await (await journal.open_run("run", {}, launch=launch)).commands() == (False, False)


@pytest.mark.promise("journal:commands")
async def test_a_command_for_an_unknown_run_is_refused_in_one_line(journal: Journal) -> None:
    for command in (partial(journal.stop_run, "none"), partial(journal.add_seeds, "none", [], "more")):
        with pytest.raises(ConfigurationError, match=r"^journal: it has no run 'none'$"):
            await command()
