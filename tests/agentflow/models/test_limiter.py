"""The adaptive concurrency limit, in virtual time with simulated requests."""

import asyncio

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.models._endpoints import ConcurrencyLimiter, Permit
from agentflow.testing import VirtualClock, VirtualTimeLoop


async def rounds(limiter: ConcurrencyLimiter, count: int, *, overloaded: bool = False) -> None:
    """Run full rounds, in which all requests succeed or report overload."""
    for _ in range(count):
        slots = [await limiter.acquire(limiter.ticket()) for _ in range(limiter.limit)]
        for permit in slots:
            limiter.release(permit, good=not overloaded, overloaded=overloaded)


@pytest.mark.promise("models:adapts")
async def test_the_limit_doubles_each_round_until_the_first_overload() -> None:
    limiter = ConcurrencyLimiter(1000, start=4, clock=VirtualClock())
    slots = [await limiter.acquire(limiter.ticket()) for _ in range(4)]
    seen: list[int] = []
    for _ in range(3):
        for permit in [slots.pop(0) for _ in range(len(slots))]:
            limiter.release(permit, good=True)
            while limiter.in_flight < limiter.limit:
                slots.append(await limiter.acquire(limiter.ticket()))
        seen.append(limiter.limit)
    assert seen == [8, 16, 32]


@pytest.mark.promise("models:adapts")
async def test_an_overload_halves_the_limit_once_per_round() -> None:
    limiter = ConcurrencyLimiter(64, start=64, clock=VirtualClock())
    await rounds(limiter, 1, overloaded=True)
    assert limiter.limit == 32
    await rounds(limiter, 1, overloaded=True)
    assert limiter.limit == 16


@pytest.mark.promise("models:adapts")
async def test_after_an_overload_the_limit_grows_by_about_one_per_round() -> None:
    limiter = ConcurrencyLimiter(64, start=16, clock=VirtualClock())
    await rounds(limiter, 1, overloaded=True)
    assert limiter.limit == 8
    slots = [await limiter.acquire(limiter.ticket()) for _ in range(8)]
    for _ in range(9):
        limiter.release(slots.pop(0), good=True)
        while limiter.in_flight < limiter.limit:
            slots.append(await limiter.acquire(limiter.ticket()))
    assert limiter.limit == 9


@pytest.mark.promise("models:adapts")
async def test_the_limit_stays_between_one_and_its_maximum() -> None:
    limiter = ConcurrencyLimiter(5, start=32, clock=VirtualClock())
    await rounds(limiter, 5)
    assert limiter.limit == 5
    await rounds(limiter, 9, overloaded=True)
    assert limiter.limit == 1
    await rounds(limiter, 1)
    assert limiter.in_flight == 0


@pytest.mark.promise("models:adapts")
async def test_the_limit_does_not_grow_while_no_request_waits() -> None:
    limiter = ConcurrencyLimiter(64, start=8, clock=VirtualClock())
    for _ in range(100):
        limiter.release(await limiter.acquire(limiter.ticket()), good=True)
    assert limiter.limit == 8


async def line(
    limiter: ConcurrencyLimiter,
    names: str,
    entered: list[str],
    slots: list[Permit],
    group: anyio.abc.TaskGroup,
) -> None:
    """Queue several requests, one after the other."""

    async def come(name: str) -> None:
        slots.append(await limiter.acquire(limiter.ticket()))
        entered.append(name)

    for name in names:
        group.start_soon(come, name)
        await anyio.wait_all_tasks_blocked()


@pytest.mark.promise("models:fair")
async def test_requests_are_served_in_order_and_retries_keep_their_place() -> None:
    limiter = ConcurrencyLimiter(1, clock=VirtualClock())
    early = limiter.ticket()
    slots = [await limiter.acquire(early)]
    entered: list[str] = []
    async with anyio.create_task_group() as group:
        await line(limiter, "abc", entered, slots, group)

        async def come_back() -> None:
            slots.append(await limiter.acquire(early))
            entered.append("early")

        limiter.release(slots.pop(0), overloaded=True)
        await anyio.wait_all_tasks_blocked()
        assert entered == ["a"]
        group.start_soon(come_back)
        await anyio.wait_all_tasks_blocked()
        assert limiter.waiting == 3
        for _ in range(4):
            limiter.release(slots.pop(0), good=True)
            await anyio.wait_all_tasks_blocked()
    assert entered == ["a", "early", "b", "c"]


@pytest.mark.promise("models:fair")
async def test_a_cancelled_wait_uses_no_permit() -> None:
    limiter = ConcurrencyLimiter(1, clock=VirtualClock())
    slots = [await limiter.acquire(limiter.ticket())]
    entered: list[str] = []

    async def come(name: str) -> None:
        slots.append(await limiter.acquire(limiter.ticket()))
        entered.append(name)

    async with asyncio.TaskGroup() as group:
        one, _ = group.create_task(come("a")), group.create_task(come("b"))
        await anyio.wait_all_tasks_blocked()
        # The leave and the cancellation come in the same moment.
        limiter.release(slots.pop(0), good=True)
        one.cancel()
    assert entered == ["b"]
    assert (limiter.in_flight, limiter.waiting) == (1, 0)


@pytest.mark.promise("models:retry_after")
async def test_no_request_starts_before_retry_after() -> None:
    clock = VirtualClock()
    limiter = ConcurrencyLimiter(8, clock=clock)
    limiter.release(await limiter.acquire(limiter.ticket()), overloaded=True, pause=10)
    gate_closed: list[str] = []
    slots: list[Permit] = []
    async with anyio.create_task_group() as group:
        await line(limiter, "ab", gate_closed, slots, group)
        clock.advance(9.9)
        await anyio.wait_all_tasks_blocked()
        assert gate_closed == []
        clock.advance(0.2)
        await anyio.wait_all_tasks_blocked()
    assert gate_closed == ["a", "b"]


@pytest.mark.promise("models:retry_after")
async def test_the_later_of_two_retry_after_times_counts() -> None:
    clock = VirtualClock()
    limiter = ConcurrencyLimiter(8, clock=clock)
    slots = [await limiter.acquire(limiter.ticket()) for _ in range(3)]
    for permit, pause in zip(slots, (5, 20, 1), strict=True):
        limiter.release(permit, overloaded=True, pause=pause)
    entered: list[str] = []
    async with anyio.create_task_group() as group:
        await line(limiter, "a", entered, [], group)
        clock.advance(19)
        await anyio.wait_all_tasks_blocked()
        assert entered == []
        clock.advance(2)
    assert entered == ["a"]


@pytest.mark.promise("models:adapts")
@settings(deadline=None)
@given(capacity=st.integers(1, 40), most=st.integers(1, 60), calls=st.integers(1, 120))
def test_every_call_succeeds_at_an_endpoint_with_a_concurrency_limit(
    capacity: int, most: int, calls: int
) -> None:
    done: list[int] = []
    most_seen = 0

    async def ask(limiter: ConcurrencyLimiter, number: int) -> None:
        nonlocal most_seen
        ticket = limiter.ticket()
        while True:
            permit = await limiter.acquire(ticket)
            most_seen = max(most_seen, limiter.in_flight)
            full = limiter.in_flight > capacity
            await anyio.sleep(0.001 if full else 0.05)
            limiter.release(permit, good=not full, overloaded=full)
            if not full:
                done.append(number)
                return
            await anyio.sleep(0.02)

    async def main() -> None:
        limiter = ConcurrencyLimiter(most)
        with anyio.fail_after(3600):
            async with anyio.create_task_group() as group:
                for number in range(calls):
                    group.start_soon(ask, limiter, number)
        assert (limiter.in_flight, limiter.waiting) == (0, 0)

    anyio.run(main, backend_options={"loop_factory": VirtualTimeLoop})
    assert sorted(done) == list(range(calls))
    assert most_seen <= most
