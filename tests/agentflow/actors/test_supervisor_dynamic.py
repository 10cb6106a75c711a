"""OTP's supervisor suite, the part on dynamic children (`simple_one_for_one`) and on many children."""

from collections.abc import Callable

import anyio
import pytest

from agentflow.actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    Clock,
    DynamicSupervisor,
    Restart,
    RestartLimitReached,
    Supervisor,
    SystemClock,
    Timer,
    UnknownChild,
)
from agentflow.testing import EventRecorder, Fault, FaultyChild, Start


def template(
    faulty: FaultyChild, restart: Restart = Restart.PERMANENT, *, significant: bool = False
) -> ChildSpec:
    return ChildSpec(id="d", start=faulty.make, restart=restart, significant=significant)


@pytest.mark.promise("actors:dynamic:arguments")
async def test_a_dynamic_child_gets_its_own_arguments_at_each_start() -> None:
    """simple_one_for_one"""
    faulty, events = FaultyChild(), EventRecorder()
    async with DynamicSupervisor(template(faulty), observer=events) as supervisor:
        first, child = await supervisor.start_child("x", 1)
        second, _ = await supervisor.start_child("y", 2)
        assert (first, second) == ("d-1", "d-2")
        assert supervisor.which_children()[0].child is child
        faulty.end(Fault.CRASH, which=0)
        await events.until_started("d-1", 2)
        assert faulty.arguments == [("x", 1), ("y", 2), ("x", 1)]
        assert supervisor.count_children() == (1, 2, 0, 2)


@pytest.mark.promise("actors:dynamic:forgotten")
@pytest.mark.parametrize("restart", [Restart.TRANSIENT, Restart.TEMPORARY])
async def test_a_dynamic_child_that_ended_for_good_is_forgotten(restart: Restart) -> None:
    """do_not_save_start_parameters_for_temporary_children"""
    faulty, events = FaultyChild(), EventRecorder()
    async with DynamicSupervisor(template(faulty, restart), observer=events) as supervisor:
        await supervisor.start_child()
        faulty.end()
        await events.until_ended("d-1")
        await anyio.sleep(1)
        assert supervisor.which_children() == []


@pytest.mark.promise("actors:dynamic:terminate")
async def test_a_dynamic_child_can_be_terminated_and_is_forgotten() -> None:
    faulty = FaultyChild()
    async with DynamicSupervisor(template(faulty)) as supervisor:
        id, _ = await supervisor.start_child()
        await supervisor.terminate_child(id)
        assert supervisor.which_children() == []
        with pytest.raises(UnknownChild):
            await supervisor.terminate_child(id)


@pytest.mark.promise("actors:dynamic:parallel-stop")
async def test_dynamic_children_are_stopped_concurrently() -> None:
    faulty, events = FaultyChild(stubborn=True), EventRecorder()
    async with DynamicSupervisor(template(faulty), observer=events) as supervisor:
        for _ in range(10):
            await supervisor.start_child()
        start = anyio.current_time()
    assert anyio.current_time() - start == pytest.approx(5)
    assert [kind for _, kind in events.ended()] == ["killed"] * 10


@pytest.mark.promise("actors:dynamic:escalation")
async def test_dynamic_children_share_one_restart_limit() -> None:
    """simple_one_for_one_escalation"""
    faulty, events = FaultyChild(), EventRecorder()
    with pytest.raises(RestartLimitReached):
        async with DynamicSupervisor(template(faulty), intensity=1, observer=events) as supervisor:
            await supervisor.start_child()
            await supervisor.start_child()
            faulty.end(Fault.CRASH, which=0)
            faulty.end(Fault.CRASH, which=1)
            await anyio.sleep_forever()


@pytest.mark.promise("actors:dynamic:failing-restart")
async def test_a_failed_restart_of_a_dynamic_child_is_retried_without_blocking_requests() -> None:
    """hanging_restart_loop_simple"""
    faulty, events = FaultyChild(starts=(Start.OK, *[Start.FAIL] * 5)), EventRecorder()
    async with DynamicSupervisor(
        template(faulty), intensity=9, backoff=Backoff(initial=1), observer=events
    ) as supervisor:
        id, _ = await supervisor.start_child()
        faulty.end(Fault.CRASH)
        await events.until_ended(id, 3)
        await supervisor.terminate_child(id)
        await anyio.sleep(1000)
        assert faulty.attempts == 3
        assert supervisor.which_children() == []


@pytest.mark.promise("actors:dynamic:auto-shutdown")
async def test_the_last_significant_dynamic_child_ends_its_supervisor() -> None:
    faulty = FaultyChild()
    supervisor = DynamicSupervisor(
        template(faulty, Restart.TEMPORARY, significant=True), auto_shutdown=AutoShutdown.ALL_SIGNIFICANT
    )
    async with supervisor:
        await supervisor.start_child()
        await supervisor.start_child()
        faulty.end(which=0)
        await anyio.sleep(1)
        assert supervisor.count_children().active == 1
        faulty.end(which=1)
        assert (await supervisor.wait()).kind == "shutdown"


class CountingClock(SystemClock):
    """Counts its calls: a measure of work that does not depend on the machine."""

    def __init__(self) -> None:
        self.asked = 0

    def now(self) -> float:
        self.asked += 1
        return super().now()


async def turns_of(work: int, *, restart: Restart, clock: Clock) -> int:
    """Return the loop turns needed to start that many children, end them, and stop."""
    faulty, events = FaultyChild(), EventRecorder()
    turns = 0
    done = False

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        async with DynamicSupervisor(template(faulty, restart), observer=events, clock=clock) as supervisor:
            for _ in range(work):
                await supervisor.start_child()
            if restart is Restart.TEMPORARY:
                for which in range(work):
                    faulty.end(which=which)
                await events.until_ended(f"d-{work}")
        done = True
    return turns


@pytest.mark.promise("actors:scale")
@pytest.mark.parametrize("restart", [Restart.TEMPORARY, Restart.PERMANENT])
async def test_twice_as_many_dynamic_children_take_about_twice_the_work(restart: Restart) -> None:
    """simple_one_for_one_scale_many_temporary_children"""
    clock, double_clock = CountingClock(), CountingClock()
    once = await turns_of(300, restart=restart, clock=clock)
    twice = await turns_of(600, restart=restart, clock=double_clock)
    assert twice <= 2.2 * once
    assert double_clock.asked <= 2.2 * clock.asked


class CountingTimer(SystemClock):
    """Counts the timers that were set."""

    def __init__(self) -> None:
        self.timers = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers += 1
        return super().call_later(seconds, callback)


@pytest.mark.promise("actors:scale")
async def test_starting_and_stopping_many_ordered_children_sets_a_few_timers_for_each() -> None:
    """scale_start_stop_many_children"""
    counts: list[int] = []
    for many in (200, 400):
        clock = CountingTimer()
        faulty = FaultyChild()
        specs = [ChildSpec(id=str(number), start=faulty.make) for number in range(many)]
        async with Supervisor(specs, clock=clock):
            pass
        counts.append(clock.timers)
    assert counts[1] == 2 * counts[0]
