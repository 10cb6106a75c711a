"""CallGate: calls together, a fork alone."""

import anyio
from anyio.lowlevel import checkpoint

from mcp_servers.core._sessions import CallGate


async def test_alone_waits_for_those_inside_and_keeps_newcomers_out() -> None:
    gate = CallGate()
    order: list[str] = []
    await gate.enter()

    async def alone() -> None:
        async with gate.alone():
            order.append("alone")
            await checkpoint()
            order.append("alone still")

    async def newcomer() -> None:
        await gate.enter()
        order.append("newcomer")
        gate.leave()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(alone)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(newcomer)
            await anyio.wait_all_tasks_blocked()
            assert order == []
            gate.leave()
    assert order == ["alone", "alone still", "newcomer"]


async def test_giving_up_waiting_lets_the_others_in() -> None:
    gate = CallGate()
    await gate.enter()
    with anyio.move_on_after(0):
        async with gate.alone():
            raise AssertionError("it was not alone")
    with anyio.fail_after(60):
        await gate.enter()
    assert gate.running == 2


async def test_two_exclusive_holders_take_turns() -> None:
    gate = CallGate()
    holders = 0

    async def alone() -> None:
        nonlocal holders
        async with gate.alone():
            holders += 1
            assert holders == 1
            await checkpoint()
            holders -= 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(alone)
            group.start_soon(alone)
