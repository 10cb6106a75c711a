"""Concurrent jobs and calls in threads: their results, their errors, and the end of the run."""

import gc
import weakref

import anyio
import anyio.lowlevel
import pytest

from agentflow.actors import computed, together
from agentflow.errors import RunStopped, StopCause, WorkPostponed


@pytest.mark.promise("actors:together")
async def test_the_first_error_cancels_the_other_jobs() -> None:
    async def fail() -> None:
        raise KeyError("first")

    with anyio.fail_after(60), pytest.raises(KeyError, match="first"):
        await together([fail, anyio.sleep_forever])


@pytest.mark.promise("actors:together")
@pytest.mark.parametrize(
    "stop", [WorkPostponed(StopCause.MODEL, "busy"), RunStopped(StopCause.BUDGET, "spent")]
)
async def test_the_other_jobs_complete_after_one_stopped_its_seed_or_the_run(stop: RunStopped) -> None:
    done: list[int] = []

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        done.append(1)

    async def end() -> None:
        raise stop

    with pytest.raises(type(stop), match=stop.message):
        await together([work, end, end, work])
    assert done == [1, 1]


@pytest.mark.promise("actors:together")
async def test_the_end_of_the_run_takes_precedence_over_a_postponed_job() -> None:
    async def postpone() -> None:
        raise WorkPostponed(StopCause.MODEL, "busy")

    async def stop() -> None:
        await anyio.lowlevel.checkpoint()
        raise RunStopped(StopCause.BUDGET, "spent")

    with pytest.raises(RunStopped, match="spent"):
        await together([postpone, stop])


@pytest.mark.promise("actors:together")
async def test_a_journal_that_cannot_be_written_cancels_the_other_jobs() -> None:
    async def stop() -> None:
        raise RunStopped(StopCause.JOURNAL, "the disk is full")

    with anyio.fail_after(60), pytest.raises(RunStopped, match="full"):
        await together([stop, anyio.sleep_forever])


class Large:
    """Something that should not stay in memory."""


def refuse(value: Large) -> int:
    raise ValueError(f"not {type(value).__name__}")


@pytest.mark.promise("actors:computed")
@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_failed_call_keeps_nothing_that_it_read(in_thread: bool) -> None:
    assert await computed(in_thread, len, "abc") == 3
    value = Large()
    kept = weakref.ref(value)
    gc.disable()
    try:
        try:
            await computed(in_thread, refuse, value)
        except ValueError as error:
            assert str(error) == "not Large"
        del value
        assert kept() is None
    finally:
        gc.enable()
