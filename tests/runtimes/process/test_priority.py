"""CPU priority of sandboxes."""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import anyio
import psutil
import pytest

from runtimes import InstanceSpec, Language, Limits, Outcome
from runtimes.process import ProcessRuntime

LOOPS = 3
"""Busy programs next to the sandbox."""
ENDLESS = "while True: pass"
GROUP = "/proc/self/autogroup"
GROUPED = os.path.exists(GROUP)
"""The kernel divides the CPU by session; only then there is the file."""
UNTIMED = InstanceSpec(limits=Limits(wall_seconds=None))
"""A sandbox whose runs have no time limit: on a full machine, idle ones wait for a moment in which it is not."""
ENOUGH = 0.5
"""CPU seconds that each of them has when the shares are compared."""


@pytest.mark.promise("document:busy")
@pytest.mark.parametrize(("idle", "policy"), [(True, os.SCHED_IDLE), (False, os.SCHED_OTHER)])
async def test_sandboxes_run_at_idle_priority_only_with_idle(idle: bool, policy: int) -> None:
    async with ProcessRuntime(preload=(), idle=idle) as runtime:
        instance = await runtime.start(UNTIMED)
        there = await instance.run("python", "import os; os.sched_getscheduler(0)")
        assert there.value == str(policy)
        shell = await instance.run("bash", "read -ra fields < /proc/self/stat; echo ${fields[40]}")
        assert shell.stdout == f"{policy}\n"


@pytest.mark.promise("document:busy")
@pytest.mark.parametrize("user", [None, "root"])
@pytest.mark.parametrize(("idle", "nice"), [(True, "19"), (False, "0")])
async def test_the_session_group_of_a_command_is_idle_only_with_idle(
    idle: bool, nice: str, user: str | None
) -> None:
    async with ProcessRuntime(preload=(), idle=idle) as runtime:
        seen = await (await runtime.start(UNTIMED)).exec(["cat", GROUP], user=user)
        assert seen.stdout.split()[-2:] == ([b"nice", nice.encode()] if GROUPED else [])


@contextmanager
def one_cpu() -> Generator[None]:
    """Keep this process, and all that it starts, on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_loop() -> Generator[psutil.Process]:
    """Run a busy program of an ordinary user."""
    with subprocess.Popen([sys.executable, "-S", "-c", ENDLESS], start_new_session=True) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def used(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.promise("containment:fair")
@pytest.mark.parametrize("idle", [False, True])
async def test_a_sandbox_next_to_busy_programs_gets_a_fair_share_unless_it_is_idle(idle: bool) -> None:
    with one_cpu(), ExitStack() as stack:
        async with ProcessRuntime(preload=(), idle=idle) as runtime, anyio.create_task_group() as tasks:
            instance = await runtime.start()
            await instance.run("python", "1")
            loops = [stack.enter_context(busy_loop()) for _ in range(LOOPS)]
            start = (await instance.usage()).cpu_seconds
            others = [used(loop) for loop in loops]
            tasks.start_soon(instance.run, "python", ENDLESS)
            # Only the kernel knows what other programs have used.
            while min(used(loop) - before for loop, before in zip(loops, others, strict=True)) < ENOUGH:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            got = (await instance.usage()).cpu_seconds - start
            usual = sum(used(loop) - before for loop, before in zip(loops, others, strict=True)) / LOOPS
            # Idle programs still get the moments in which the kernel moves others.
            assert got < usual / 4 if idle else got > usual / 2
            tasks.cancel_scope.cancel()


@pytest.mark.promise("limits:cpu-told")
@pytest.mark.parametrize("language", ["bash", "python"])
async def test_a_timeout_tells_how_much_cpu_time_the_sandbox_got(language: Language) -> None:
    wait = {"bash": "sleep 100", "python": "import time; time.sleep(100)"}[language]
    async with ProcessRuntime(preload=()) as runtime:
        instance = await runtime.start()
        run = await instance.run(language, wait, timeout=0.5)
        assert run.outcome is Outcome.TIMEOUT
        match = re.fullmatch(
            r"the run was ended: timeout after 0\.5 s, with (.+) s of CPU time for the sandbox", run.detail
        )
        assert match is not None, run.detail
        assert float(match[1]) < 0.5
