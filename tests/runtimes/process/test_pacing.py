"""Reading from sandboxes: at a bounded rate, and never longer than what was there."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from runtimes.process._output import BURST_BYTES, MIN_COST, OutputPipes, PacedReader

pytestmark = pytest.mark.promise("instances:pace")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(("size", "cost"), [(1, MIN_COST), (1, 16 * MIN_COST), (512, MIN_COST)])
async def test_a_flood_of_small_writes_is_read_in_a_burst_and_then_slowly(
    pipe: tuple[int, int], size: int, cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimes.process._output.BYTES_PER_SECOND", 0.001)
    readable, writable = pipe
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        return len(os.read(readable, 65536))

    reader = PacedReader(readable, read)
    reader.cost = cost
    for _ in range(BURST_BYTES // MIN_COST + 50):
        os.write(writable, bytes(size))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    reader.close()
    assert reads == BURST_BYTES // cost + 1


async def test_reading_continues_after_a_pause(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimes.process._output.BURST_BYTES", 1)
    readable, writable = pipe
    received, all_there = 0, asyncio.Event()

    def read() -> int:
        nonlocal received
        size = len(os.read(readable, 1))
        received += size
        if received == 20:
            all_there.set()
        return size

    os.write(writable, bytes(20))
    reader = PacedReader(readable, read)
    await asyncio.wait_for(all_there.wait(), 60)
    reader.close()


async def test_collecting_the_output_of_a_run_does_not_wait_for_a_process_that_keeps_writing() -> None:
    (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
    pipes = OutputPipes(out_read, err_read, limit=1000)

    def write_more(name: str, data: bytes) -> None:
        os.write(out_write, b"again")

    pipes.on_output = write_more
    os.write(out_write, b"first")
    pipes.drain()
    assert pipes.take() == (b"first", b"")
    pipes.close()
    for fd in (out_write, err_write):
        os.close(fd)
