"""Exceed every limit in bash, in Python and in single commands, and print the outcomes as JSON.

Run as a program: as root, with cgroups that limit whole sandboxes, and as an ordinary user without them.
"""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Literal

import anyio

from runtimes import ExecResult, Instance, InstanceSpec, Limits, RunResult, Runtime
from runtimes.process import ProcessRuntime

MIB = 1024 * 1024
Where = Literal["bash", "python", "exec"]
_PATIENCE = 60.0
"""Wall limit of runs that must hit another limit first."""
_WALL = Limits(wall_seconds=3)
"""Short, but long enough for a command to start on a busy machine."""
_CPU = Limits(cpu_seconds=1, wall_seconds=300)
"""On a busy machine, a second of CPU time takes much longer than a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Code that exceeds a limit."""

    name: str
    """Description."""
    where: Where
    """Session to run it in; `exec` is a single command of bash or Python."""
    code: str
    """Code, which prints `before` first."""
    limits: Limits
    """Limits of its instance."""
    outcome: str
    """Expected outcome."""
    keeps_state: bool | None = True
    """The session must survive; `None` if that depends on timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observed outcome."""

    outcome: str
    """Outcome of the run."""
    detail: str
    """Detail of the result."""
    output: str
    """Start of the output."""
    printed: int
    """Length of the output in characters."""
    state_lost: bool
    """The session was ended."""
    state: str
    """Value of a variable set before the run."""
    again: str
    """Output of the next run."""
    processes: int
    """Number of processes left besides the session's own, after a wait."""


def _all(
    name: str, limits: Limits, outcome: str, *, bash: str, python: str, keeps_state: bool | None = True
) -> list[Excess]:
    command = f"exec {sys.executable} -c {json.dumps(python)}" if python.startswith("#exec") else bash
    return [
        Excess(name=name, where="bash", code=f"echo before; {bash}", limits=limits, outcome=outcome, keeps_state=keeps_state),
        Excess(name=name, where="python", code=f"print('before', flush=True)\n{python}", limits=limits, outcome=outcome, keeps_state=keeps_state),
        Excess(name=name, where="exec", code=f"echo before; {command}", limits=limits, outcome=outcome),
    ]  # fmt: skip


_PROCESS_TREE = (
    "import subprocess\nsubprocess.run(['bash', '-c', '(trap \"\" TERM INT; while :; do :; done) & setsid sleep 987 & "
    "(setsid sleep 987 &) ; wait'])"
)
_SPIN = "while True:\n    pass"
_SWALLOW = "while True:\n    try:\n        while True:\n            pass\n    except KeyboardInterrupt:\n        pass"

EXCESSES: list[Excess] = [
    *_all("wall", _WALL, "timeout", bash="sleep 987", python="import time\ntime.sleep(987)"),
    *_all("wall in a loop", _WALL, "timeout", bash="while :; do :; done", python=_SPIN),
    *_all("wall in a tree of processes", _WALL, "timeout", bash="(trap '' TERM INT; while :; do :; done) & setsid sleep 987 & (setsid sleep 987 &); wait", python=_PROCESS_TREE),
    *_all("wall while ignoring every signal", _WALL, "timeout", bash="trap '' TERM INT HUP QUIT ALRM; while :; do sleep 9; done", python=f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_SPIN}"),
    Excess(name="wall in a function", where="bash", code="echo before; f() { while true; do f2; done; }; f2() { sleep 0.01; }; f", limits=_WALL, outcome="timeout", keeps_state=None),
    Excess(name="wall in a subshell with a trap", where="bash", code="echo before; (trap 'echo no' TERM INT EXIT; while :; do sleep 9; done)", limits=_WALL, outcome="timeout"),
    Excess(name="wall in a pipeline", where="bash", code="echo before; yes | cat | sleep 987", limits=_WALL, outcome="timeout"),
    Excess(name="wall with the shell replaced", where="bash", code="echo before; exec sleep 987", limits=_WALL, outcome="timeout", keeps_state=False),
    Excess(name="wall swallowing the interrupt", where="python", code=f"print('before', flush=True)\n{_SWALLOW}", limits=_WALL, outcome="timeout", keeps_state=False),
    Excess(name="wall ignoring the interrupt", where="python", code=f"import signal\nprint('before', flush=True)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{_SPIN}", limits=_WALL, outcome="timeout", keeps_state=False),
    Excess(name="wall asleep outside of Python", where="python", code="import ctypes\nprint('before', flush=True)\nlibc = ctypes.CDLL(None)\nwhile True:\n    libc.sleep(987)", limits=_WALL, outcome="timeout"),
    Excess(name="wall waiting for a lock", where="python", code="import threading\nprint('before', flush=True)\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()", limits=_WALL, outcome="timeout"),
    Excess(name="wall in an async program", where="python", code="import asyncio\nprint('before', flush=True)\nawait asyncio.sleep(987)", limits=_WALL, outcome="timeout"),
    *_all("CPU", _CPU, "cpu_limit", bash="while :; do :; done", python=_SPIN),
    *_all("CPU of children", _CPU, "cpu_limit", bash="sh -c 'while :; do :; done'", python="import subprocess\nsubprocess.run(['sh', '-c', 'while :; do :; done'])"),
    *_all("file size", Limits(file_bytes=MIB), "file_too_large", bash="head -c 2M /dev/zero > big", python=f"file = open('big', 'wb', buffering=0)\nwhile True:\n    file.write(bytes({MIB}))"),
    *_all("disk", Limits(disk_bytes=4 * MIB), "file_too_large", bash="head -c 8M /dev/zero > big", python=f"for n in range(8):\n    open(str(n), 'wb').write(bytes({MIB}))"),
    *_all("disk through shared memory", Limits(disk_bytes=4 * MIB), "file_too_large", bash="head -c 8M /dev/zero > /dev/shm/big", python=f"for n in range(8):\n    open(f'/dev/shm/{{n}}', 'wb').write(bytes({MIB}))"),
    *_all("number of files", Limits(files=200), "file_too_large", bash="for i in {1..300}; do echo > $i || break; done; (exit 1)", python="for n in range(300):\n    open(str(n), 'w').close()"),
    *_all("output", Limits(output_bytes=MIB), "output_limit", bash="yes", python="while True:\n    print('y' * 1000)"),
    *_all("output of errors", Limits(output_bytes=MIB), "output_limit", bash="yes >&2", python="import sys\nwhile True:\n    print('y' * 1000, file=sys.stderr)"),
    *_all("processes", Limits(processes=20, wall_seconds=60), "too_many_processes", keeps_state=None, bash="for i in {1..40}; do sleep 987 & done; wait", python="import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(987)"),
    Excess(name="threads", where="python", code="import threading, time\nprint('before', flush=True)\nwhile True:\n    threading.Thread(target=time.sleep, args=(987,), daemon=True).start()", limits=Limits(processes=20), outcome="too_many_processes"),
    Excess(name="fork bomb", where="bash", code="echo before; bomb() { bomb | bomb & }; bomb; sleep 987", limits=Limits(processes=50, wall_seconds=3), outcome="timeout"),
    Excess(name="memory", where="python", code=f"print('before', flush=True)\nkept = [bytes(b'x' * {MIB}) for n in range(2000)]", limits=Limits(memory_bytes=256 * MIB), outcome="out_of_memory", keeps_state=None),
    Excess(name="memory of a child", where="bash", code=f"echo before; {sys.executable} -c 'kept = [bytes(b\"x\" * {MIB}) for n in range(2000)]'", limits=Limits(memory_bytes=256 * MIB), outcome="out_of_memory"),
    Excess(name="memory", where="exec", code=f"echo before; exec {sys.executable} -c 'kept = [bytes(b\"x\" * {MIB}) for n in range(2000)]'", limits=Limits(memory_bytes=256 * MIB), outcome="out_of_memory"),
]  # fmt: skip


@asynccontextmanager
async def _started(runtime: Runtime, limits: Limits) -> AsyncGenerator[Instance]:
    instance = await runtime.start(InstanceSpec(limits=limits))
    try:
        yield instance
    finally:
        await instance.stop()


async def _left(instance: Instance, expected: int) -> int:
    """Return the number of processes left, after a wait: exiting takes time on a busy machine."""
    left = 1
    with anyio.move_on_after(_PATIENCE):
        while left > 0:
            left = (await instance.usage()).processes - expected
    return left


async def _exceed(instance: Instance, excess: Excess) -> Observed:
    if excess.where == "exec":
        done: ExecResult = await instance.exec(["bash", "-c", excess.code])
        again = await instance.exec(["echo", "again"], timeout=_PATIENCE)
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        left = await _left(instance, 0)
        return Observed(outcome=done.outcome, detail=done.detail, output=output[:200], printed=len(output), state_lost=False, state="kept", again=again.stdout.decode().strip(), processes=left)  # fmt: skip
    if excess.where == "bash":
        await instance.run("bash", "state=kept", timeout=_PATIENCE)
        result = await instance.run("bash", excess.code)
        state, again = "echo $state", "echo again"
    else:
        await instance.run("python", "state = 'kept'", timeout=_PATIENCE)
        result = await instance.run("python", excess.code)
        state, again = "print(globals().get('state', ''))", "print('again')"
    left = await _left(instance, 0 if result.state_lost else 1)
    if excess.name in ("disk", "number of files", "disk through shared memory"):
        await instance.exec(["sh", "-c", "rm -rf /home/agent/* /dev/shm/*"])
    states: RunResult = await instance.run(excess.where, state, timeout=_PATIENCE)
    answer = await instance.run(excess.where, again, timeout=_PATIENCE)
    output = result.stdout + result.stderr
    return Observed(outcome=result.outcome, detail=result.detail, output=output[:200], printed=len(output), state_lost=result.state_lost, state=states.stdout.strip(), again=answer.stdout.strip(), processes=left)  # fmt: skip


def key(excess: Excess) -> str:
    """Return its key in a report."""
    return f"{excess.where}: {excess.name}"


async def observe(runtime: Runtime, excess: Excess) -> Observed:
    """Exceed one limit."""
    async with _started(runtime, excess.limits) as instance:
        return await _exceed(instance, excess)


async def run() -> dict[str, dict[str, object]]:
    """Exceed every limit."""
    observed: dict[str, dict[str, object]] = {}
    at_once = anyio.CapacityLimiter(6)
    # Without idle priority, so that short limits are exceeded by the code under test even while other tests run.
    async with ProcessRuntime(preload=(), idle=False) as runtime:

        async def exceed(excess: Excess) -> None:
            async with at_once:
                observed[key(excess)] = asdict(await observe(runtime, excess))

        async with anyio.create_task_group() as tasks:
            for excess in EXCESSES:
                tasks.start_soon(exceed, excess)
    return observed


def main() -> None:
    """Print the report."""
    sys.stdout.write(json.dumps(anyio.run(run)))


if __name__ == "__main__":
    main()
