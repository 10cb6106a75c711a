"""Each limit is a typed outcome with the output printed before, and no process is left."""

import contextlib
from typing import cast

import anyio
import pytest

from agentflow.errors import RuntimeFailure
from runtimes import InstanceSpec, Language, Limits, Outcome
from runtimes.process import ProcessRuntime
from tests.runtimes.process.conftest import KINDS, Kind, Users
from tests.runtimes.process.limit_run import EXCESSES, Excess, key

MODULE = "tests.runtimes.process.limit_run"
pytestmark = pytest.mark.timeout(500)


@pytest.mark.promise("limits:outcomes")
@pytest.mark.parametrize("excess", EXCESSES, ids=key)
@pytest.mark.parametrize("kind", KINDS[:2])
def test_exceeding_a_limit_is_a_typed_outcome(users: Users, kind: Kind, excess: Excess) -> None:
    report = cast("dict[str, dict[str, str | int | bool]]", users.report(MODULE, kind))
    seen = report[key(excess)]
    assert seen["outcome"] == excess.outcome, seen
    assert seen["detail"]
    assert "before" in str(seen["output"]) or cast("int", seen["printed"]) > 1000, seen
    assert cast("int", seen["processes"]) <= 0, seen
    assert seen["again"] == "again"
    assert seen["state"] == ("" if seen["state_lost"] else "kept")
    if excess.keeps_state is not None:
        assert seen["state_lost"] is not excess.keeps_state, seen


@pytest.mark.promise("limits:output")
@pytest.mark.parametrize("language", ["bash", "python"])
async def test_output_is_cut_exactly_at_the_limit(runtime: ProcessRuntime, language: str) -> None:
    instance = await runtime.start(InstanceSpec(limits=Limits(output_bytes=1000)))
    code = "yes" if language == "bash" else "while True: print('y')"
    result = await instance.run("bash" if language == "bash" else "python", code)
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert len(result.stdout) + len(result.stderr) == 1000
    assert set(result.stdout) == {"y", "\n"}


@pytest.mark.promise("limits:open-files")
async def test_a_process_can_open_no_more_files_than_allowed(runtime: ProcessRuntime) -> None:
    instance = await runtime.start(InstanceSpec(limits=Limits(open_files=64)))
    opening = "kept = []\nwhile True:\n    kept.append(open('/dev/null'))"
    result = await instance.run("python", opening)
    assert result.error is not None
    assert "Too many open files" in result.error.message
    counted = await instance.run("python", "count = len(kept)\nkept.clear()\ncount < 64")
    assert counted.value == "True"
    shell = await instance.run("bash", "ulimit -n 65; ulimit -n")
    assert shell.stdout == "64\n"
    fork = await instance.fork()
    assert (await fork.instance.run("python", "count < 64")).value == "True"


@pytest.mark.promise("limits:apart")
async def test_resources_used_up_by_one_sandbox_are_available_to_others(runtime: ProcessRuntime) -> None:
    greedy = await runtime.start(InstanceSpec(limits=Limits(processes=64, wall_seconds=60)))
    modest = await runtime.start()

    async def use_up(language: Language, source: str) -> None:
        # The session of one language doesn't start if the other has used up all processes.
        with contextlib.suppress(RuntimeFailure):
            await greedy.run(language, source)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use_up, "bash", "bomb() { bomb | bomb & }; bomb; while :; do :; done")
        tasks.start_soon(use_up, "python", "while True:\n    open('full', 'ab').write(bytes(1000000))")
        with anyio.fail_after(60):
            for n in range(10):
                assert (await modest.run("bash", f"echo {n} | cat")).stdout == f"{n}\n"
                assert (await modest.run("python", f"{n} + 1")).value == str(n + 1)
        await greedy.stop()
    assert (await modest.usage()).processes == 2


@pytest.mark.promise("limits:chain")
async def test_endlessly_respawning_processes_delay_no_other_sandbox(runtime: ProcessRuntime) -> None:
    chain = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        if os.fork():\n            os._exit(0)"
    instance, other = await runtime.start(), await runtime.start()
    with anyio.fail_after(90):
        await instance.run("python", f"{chain}\nwhile True: pass", timeout=0.5)
        assert (await other.run("python", "1")).value == "1"
        await instance.stop()
        assert (await other.run("bash", "echo on")).stdout == "on\n"


@pytest.mark.promise("limits:daemons")
async def test_a_daemon_lives_until_its_sandbox_ends_and_no_longer(runtime: ProcessRuntime) -> None:
    instance = await runtime.start()
    daemon = "(setsid bash -c 'trap \"\" TERM INT HUP; while :; do read -t 9 < /dev/zero; done' > /dev/null 2>&1 &)"
    await instance.run("bash", f"{daemon}; sleep 0")
    assert (await instance.run("bash", "echo next")).stdout == "next\n"
    assert (await instance.usage()).processes >= 2
    fork = (await instance.fork()).instance
    await instance.stop()
    with anyio.fail_after(60):
        while (await fork.usage()).processes > 1:
            continue
    left = await fork.run("bash", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[r]ead -t 9'")
    assert left.stdout == "0\n"
