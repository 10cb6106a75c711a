"""Virtual time: nothing takes real time, and everything happens in order."""

import asyncio
from functools import partial

import anyio
import pytest

from agentflow.actors import SystemClock
from agentflow.testing import VirtualClock, VirtualTimeLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.mark.promise("actors:virtual-time:jump")
async def test_the_loop_jumps_to_the_next_timer_when_every_task_waits() -> None:
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append(anyio.current_time() - start)

    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for seconds in (3600, 1, 60):
            tasks.start_soon(sleep, seconds)
    assert woken == [pytest.approx(1), pytest.approx(60), pytest.approx(3600)]


@pytest.mark.promise("actors:virtual-time:jump")
async def test_time_does_not_pass_while_a_task_can_run() -> None:
    start = anyio.current_time()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == start


@pytest.mark.promise("actors:virtual-time:guard")
async def test_a_hang_guard_fires_at_once_in_a_test_that_hangs() -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(3600):
        await anyio.sleep_forever()


@pytest.mark.promise("actors:virtual-time:threads")
async def test_a_loop_without_timers_waits_for_a_thread() -> None:
    assert await anyio.to_thread.run_sync(lambda: 42) == 42


@pytest.mark.promise("actors:clock:system")
async def test_the_system_clock_is_the_loops_time() -> None:
    clock = SystemClock()
    start = clock.now()
    await clock.sleep(5)
    assert clock.now() - start == pytest.approx(5)
    with clock.deadline(7) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert clock.now() - start == pytest.approx(12)
    with clock.deadline(float("inf")) as scope:
        await anyio.sleep(100)
    assert not scope.cancelled_caught


@pytest.mark.promise("actors:clock:virtual")
async def test_a_virtual_clock_moves_when_advanced_and_calls_back_in_order() -> None:
    clock = VirtualClock(start=100)
    calls: list[tuple[str, float]] = []

    def remember(name: str) -> None:
        calls.append((name, clock.now()))

    for name, seconds in (("late", 9.0), ("early", 1.0), ("early too", 1.0)):
        clock.call_later(seconds, partial(remember, name))
    cancelled = clock.call_later(2, partial(remember, "cancelled"))
    cancelled.cancel()
    assert clock.pending() == 3
    clock.advance(5)
    assert calls == [("early", 101), ("early too", 101)]
    assert clock.now() == 105
    clock.advance(4)
    assert calls[-1] == ("late", 109)


@pytest.mark.promise("actors:clock:virtual")
async def test_sleeping_on_a_virtual_clock_ends_once_it_has_advanced_far_enough() -> None:
    clock = VirtualClock()
    woken = asyncio.Event()

    async def sleep() -> None:
        await clock.sleep(10)
        woken.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        await anyio.sleep(1000)
        assert not woken.is_set()
        clock.advance(10)
        await woken.wait()
    with anyio.move_on_after(1):
        await clock.sleep(10)
    assert clock.pending() == 0
