"""Progress to slow clients."""

import anyio

from mcp_servers.serving._content import PENDING, relayed


async def test_progress_is_reported_in_order_before_the_call_ends() -> None:
    seen: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(done)

    with anyio.fail_after(60):
        async with relayed(report) as sink:
            for step in range(5):
                sink(step, None, None)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_client_that_reads_nothing_delays_nothing() -> None:
    seen: list[float] = []
    reads = anyio.Event()

    async def report(done: float, total: float | None, message: str | None) -> None:
        await reads.wait()
        seen.append(done)

    with anyio.fail_after(60):
        async with relayed(report) as sink:
            for step in range(10 * PENDING):
                sink(step, None, None)
            reads.set()
    assert len(seen) <= PENDING + 1
    assert seen == sorted(seen)
