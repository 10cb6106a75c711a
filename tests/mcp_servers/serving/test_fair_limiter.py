"""FairLimiter: bounded, and fair among callers."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.serving._fair_limiter import FairLimiter


async def served(calls: list[str], at_once: int) -> list[str]:
    """Return the order in which the callers' calls run if all arrive while no slot is free."""
    limiters = FairLimiter(at_once, len(calls))
    order: list[str] = []
    running = most = 0

    async def call(caller: str) -> None:
        nonlocal running, most
        async with limiters.slot(caller):
            running += 1
            most = max(most, running)
            order.append(caller)
            await anyio.lowlevel.checkpoint()
            running -= 1

    async with anyio.create_task_group() as group, anyio.create_task_group() as holders:
        release = anyio.Event()

        async def occupy() -> None:
            async with limiters.slot("holder"):
                await release.wait()

        for _ in range(at_once):
            holders.start_soon(occupy)
        await anyio.wait_all_tasks_blocked()
        for caller in calls:
            group.start_soon(call, caller)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert most <= at_once
    return order


@pytest.mark.promise("mcp:calls:fair")
async def test_a_caller_with_one_call_waits_for_one_call_of_each_other_caller() -> None:
    with anyio.fail_after(60):
        order = await served(["many"] * 50 + ["few"], 1)
    assert order.index("few") == 1


@pytest.mark.promise("mcp:quota:reserves")
async def test_long_calls_of_one_caller_leave_slots_and_places_for_the_others() -> None:
    limiters = FairLimiter(16, 16, {"many": None, "few": None})
    running: list[str] = []

    async def occupy(caller: str) -> None:
        async with limiters.slot(caller):
            running.append(caller)
            await anyio.sleep_forever()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(12 + 12):
                group.start_soon(occupy, "many")
            await anyio.wait_all_tasks_blocked()
            assert running == ["many"] * 12
            with pytest.raises(ToolFailure, match="too many calls"):
                await occupy("many")
            for _ in range(4 + 4):
                group.start_soon(occupy, "few")
            await anyio.wait_all_tasks_blocked()
            assert running == ["many"] * 12 + ["few"] * 4
            group.cancel_scope.cancel()


@pytest.mark.promise("mcp:quota:own")
async def test_a_caller_at_its_quota_waits_for_its_own_calls_and_delays_no_other() -> None:
    limiters = FairLimiter(8, 8, {"limited": 1, "free": None})
    order: list[str] = []

    async def call(caller: str) -> None:
        async with limiters.slot(caller):
            order.append(caller)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            async with limiters.slot("limited"):
                group.start_soon(call, "limited")
                await anyio.wait_all_tasks_blocked()
                await call("free")
            await anyio.wait_all_tasks_blocked()
        assert order == ["free", "limited"]


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(1, 4))
def test_every_call_is_served_once_and_within_the_concurrency_limit(calls: list[str], at_once: int) -> None:
    assert sorted(anyio.run(served, calls, at_once)) == sorted(calls)


async def test_a_call_beyond_the_limit_is_refused_as_busy() -> None:
    limiters = FairLimiter(1, 0)
    async with limiters.slot("a"):
        with pytest.raises(ToolFailure) as caught:
            async with limiters.slot("b"):
                raise AssertionError("there was no turn")
    assert caught.value.kind is ErrorKind.BUSY


async def test_a_cancelled_waiter_leaves_no_gap() -> None:
    limiters = FairLimiter(1, 2)
    with anyio.fail_after(60):
        async with limiters.slot("a"):
            with anyio.move_on_after(0):
                async with limiters.slot("b"):
                    raise AssertionError("there was no turn")
        async with limiters.slot("c"):
            pass
        async with limiters.slot("c"):
            pass


async def test_a_slot_given_to_a_cancelled_waiter_is_passed_on() -> None:
    limiters = FairLimiter(1, 2)
    giving_up = anyio.CancelScope()

    async def wait() -> None:
        with giving_up:
            async with limiters.slot("b"):
                await anyio.sleep_forever()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            async with limiters.slot("a"):
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
            giving_up.cancel()
        async with limiters.slot("c"):
            pass
