"""Nothing is left over, however many sessions are opened and closed."""

from pathlib import Path

import anyio
import psutil
import pytest

from runtimes.process import ProcessRuntime
from tests.runtimes.process.machine import Trusted, ended, groups_of, holdings, trusted_processes

ALL_WAYS = 6


async def live_and_die(runtime: ProcessRuntime, number: int) -> None:
    """Run one session from start to end, in one of several ways."""
    instance = await runtime.start()
    way = number % ALL_WAYS
    if way in (0, 1, 2):
        await instance.run("python", "x = bytearray(1 << 20)\nopen('f', 'w').write('y')")
    if way in (1, 3):
        await instance.run("bash", "echo y > g; sleep 1000 & setsid sleep 1000 & disown")
    if way == 4:
        await instance.exec(["sh", "-c", "sleep 1000 & exit 3"])
        await instance.restore(await instance.snapshot())
    if way == 5:
        await instance.run("python", "import os\nos._exit(1)")
    fork = (await instance.fork()).instance
    if way == 0:
        assert (await fork.run("python", "len(x), open('f').read()")).value == "(1048576, 'y')"
    first, last = (instance, fork) if number % 2 else (fork, instance)
    await first.stop()
    await last.stop()


async def live_many(runtime: ProcessRuntime, count: int, at_once: int = 4) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await live_and_die(runtime, number)

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)


async def settled(runtime: ProcessRuntime, trusted: Trusted) -> None:
    """Wait until killed processes and their cgroups are gone."""
    with anyio.fail_after(60):
        # The zygote, its starter and the kill helper stay.
        while len(trusted.sandboxed()) > 3 or any(_inner(group) for group in trusted.groups()):
            await anyio.lowlevel.checkpoint()
    # A reply now means that their ends have been noticed.
    await runtime.warmup()


def _inner(group: Path) -> list[Path]:
    return [folder for folder in group.iterdir() if folder.is_dir()]


async def come_and_go(count: int) -> Trusted:
    async with ProcessRuntime(idle=False) as runtime:
        await live_many(runtime, 2 * ALL_WAYS)
        trusted = trusted_processes()
        await settled(runtime, trusted)
        before, memory = holdings(trusted), psutil.Process(trusted.sandbox_init).memory_info().rss
        folder, groups = trusted.folder, trusted.groups()
        await live_many(runtime, count)
        await settled(runtime, trusted)
        assert holdings(trusted) == before
        assert psutil.Process(trusted.sandbox_init).memory_info().rss < memory + (8 << 20)
    assert not folder.exists()
    assert [group for group in groups if group.exists()] == groups_of(folder.name) == []
    return trusted


@pytest.mark.promise("soak:nothing-left")
@pytest.mark.timeout(400)
async def test_two_hundred_sessions_leave_nothing() -> None:
    with anyio.fail_after(380):
        trusted = await come_and_go(200)
        for pid in (trusted.host_monitor, trusted.mount_helper, trusted.sandbox_init):
            await ended(pid)


@pytest.mark.soak
@pytest.mark.promise("soak:nothing-left")
async def test_ten_thousand_sessions_leave_nothing() -> None:
    await come_and_go(10_000)


@pytest.mark.promise("soak:live")
@pytest.mark.timeout(400)
async def test_many_live_sessions_each_respond() -> None:
    async with ProcessRuntime(idle=False) as runtime:
        with anyio.fail_after(300):
            instances = [await runtime.start() for _ in range(60)]
            for number, instance in enumerate(instances):
                await instance.run("python", f"mine = {number}")
            for number, instance in enumerate(instances):
                assert (await instance.run("python", "mine")).value == str(number)
