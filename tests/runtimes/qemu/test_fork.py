"""Forks of a running machine: equal to the parent at that instant, independent afterwards."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import RuntimeFailure
from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests.runtimes.qemu._guests import console, own_memory, shows, until

MIB = 1 << 20
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
WORDS = st.text("abcxyzABC0189-_=+", min_size=1, max_size=8)


@dataclass(frozen=True, slots=True)
class Step:
    """Text typed into the shell of the tiny guest."""

    line: str


@dataclass(frozen=True, slots=True)
class Divide:
    """Fork that types something else, and ends or continues in its parent's place."""

    line: str
    goes_on: bool


def lines(kind: str, word: str) -> str:
    return {
        "variable": f"v=${{v}}{word}; echo $v",
        "file": f"echo {word} >>kept; cat kept",
        "job": f"tail -f /dev/null & echo job {word}",
    }[kind]


LINES = st.builds(lines, st.sampled_from(["variable", "file", "job"]), WORDS)
STEPS = st.lists(st.builds(Step, LINES) | st.builds(Divide, LINES, st.booleans()), min_size=1, max_size=4)


async def type_line(machine: QemuMachine, line: str, number: int) -> None:
    """Type a line and wait until the shell prompts again."""
    await machine.type(f"{line}; echo done-{number}\n")

    async def asks() -> bool:
        return (await console(machine))[-2:] == [f"done-{number}", "#"]

    await until(asks)


async def state(machine: QemuMachine) -> object:
    """Return the machine's state: screen, shell, files, processes."""
    jobs = await machine.exec(["pidof", "tail"])
    kept = await machine.exec(["cat", "/root/kept"])
    return await console(machine), kept.stdout, len(jobs.stdout.split())


@pytest.mark.promise("qemu:fork")
@settings(max_examples=2, deadline=None, suppress_health_check=SLOW)
@given(steps=STEPS)
async def test_parent_fork_and_replay_agree_and_siblings_are_isolated(
    runtime: QemuRuntime, steps: list[Step | Divide]
) -> None:
    machine, replay = await runtime.start(), await runtime.start()
    machines = [machine, replay]
    try:
        for number, step in enumerate(steps):
            if isinstance(step, Divide):
                fork = await machine.fork()
                machines.append(fork)
                assert await state(fork) == await state(machine)
                other, machine = (machine, fork) if step.goes_on else (fork, machine)
                await type_line(other, step.line + "-elsewhere", 1000 + number)
            else:
                await type_line(machine, step.line, number)
                await type_line(replay, step.line, number)
            assert await state(machine) == await state(replay)
    finally:
        for started in machines:
            await started.stop()


@pytest.mark.promise("qemu:fork")
async def test_a_fork_has_the_same_pixels_on_its_screen(machine: QemuMachine) -> None:
    await type_line(machine, "v=before", 1)
    before = await machine.screenshot()
    fork = await machine.fork()
    assert await fork.screenshot() == await machine.screenshot() == before
    await fork.type("echo $v-fork\n")
    await machine.type("echo $v-parent\n")
    await shows(fork, "before-fork")
    await shows(machine, "before-parent")
    await machine.stop()
    grandchild = await fork.fork()
    await fork.stop()
    await type_line(grandchild, "echo $v-grandchild", 2)
    assert "before-grandchild" in await console(grandchild)
    await grandchild.stop()


@pytest.mark.promise("qemu:fork:memory")
async def test_a_fork_has_memory_of_its_own_only_for_what_has_changed_since_the_boot(
    machine: QemuMachine, settings: QemuSettings
) -> None:
    await machine.exec(["sh", "-c", f"head -c {4 * MIB} /dev/urandom >/changed"])
    fork = await machine.fork()
    grandchild = await fork.fork()
    sums = [(await started.exec(["md5sum", "/changed"])).stdout for started in (machine, fork, grandchild)]
    assert sums[0].endswith(b"/changed\n")
    assert sums == [sums[0]] * 3
    assert 4 * MIB < own_memory(grandchild) < settings.memory_mib * MIB // 4
    await fork.stop()
    await grandchild.stop()


@pytest.mark.promise("qemu:limit")
async def test_the_number_of_machines_is_limited_and_a_refused_fork_leaves_its_parent_unharmed(
    settings: QemuSettings,
) -> None:
    async with QemuRuntime(settings.model_copy(update={"machines": 2})) as runtime:
        first, second = await runtime.start(), await runtime.start()
        with pytest.raises(RuntimeFailure, match="the limit of 2 machines is reached"):
            await runtime.start()
        with pytest.raises(RuntimeFailure, match="the limit of 2 machines is reached"):
            await first.fork()
        await type_line(first, "echo unharmed", 1)
        await second.stop()
        await (await first.fork()).stop()
