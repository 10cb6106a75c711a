"""A thread that works for the loop."""

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest

from agentflow.journal._sqlite import WorkerThread

pytestmark = pytest.mark.promise("journal:loop")


async def test_calls_run_in_order_and_return_their_results() -> None:
    lane, done = WorkerThread("lane"), list[int]()

    async def ask(number: int) -> None:
        await lane.do(lambda: done.append(number))

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(ask, number)
    assert done == list(range(100))
    assert await lane.do(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await lane.do(lambda: 1 / 0)
    lane.close()


async def test_a_call_cancelled_before_its_turn_is_not_run() -> None:
    lane, done, begun, go_on = WorkerThread("lane"), list[str](), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait()
        done.append("first")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.do, wait)
        tasks.start_soon(lane.do, lambda: done.append("second"))
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    go_on.set()
    await lane.do(lambda: done.append("third"))
    assert done == ["first", "third"]
    lane.close()


def test_an_event_loop_that_ended_does_not_disturb_the_thread() -> None:
    lane, go_on, done = WorkerThread("lane"), threading.Event(), list[str]()

    async def ask_and_leave() -> None:
        asyncio.get_running_loop().create_task(lane.do(go_on.wait))
        await anyio.lowlevel.checkpoint()

    async def ask() -> None:
        await lane.do(lambda: done.append("again"))

    asyncio.run(ask_and_leave())
    go_on.set()
    asyncio.run(ask())
    assert done == ["again"]
    lane.close()
    lane.close()
    assert "lane" not in {thread.name for thread in threading.enumerate()}
