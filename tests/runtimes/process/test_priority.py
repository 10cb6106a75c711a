"""CPU priority of sandboxes."""

import os

import pytest

from runtimes.process import ProcessRuntime


@pytest.mark.promise("document:busy")
@pytest.mark.parametrize(("idle", "policy"), [(True, os.SCHED_IDLE), (False, os.SCHED_OTHER)])
async def test_sandboxes_run_at_idle_priority_unless_idle_is_off(idle: bool, policy: int) -> None:
    async with ProcessRuntime(preload=(), idle=idle) as runtime:
        instance = await runtime.start()
        there = await instance.run("python", "import os; os.sched_getscheduler(0)")
        assert there.value == str(policy)
        shell = await instance.run("bash", "read -ra fields < /proc/self/stat; echo ${fields[40]}")
        assert shell.stdout == f"{policy}\n"
