"""No process of a sandbox contains data of requests for other sandboxes: the trusted processes it was copied from had none."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from runtimes import Instance, InstanceSpec
from runtimes.process import ProcessRuntime
from tests.runtimes.process.machine import ended, trusted_processes

SCAN = r'''
import json, os, re
own = "mark" + "er-" + "own"
marker = re.compile(rb"[m]arker[-](?:own|first|second|third)")

def readable(pid):
    """Yield the content of every part of a process's memory that this process may read."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            for position in range(start, min(end, 1 << 63), 1 << 20):
                try:
                    yield os.pread(memory.fileno(), min((1 << 20) + 64, end - position), position)
                except OSError:
                    break

def found():
    seen = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            seen[pid] = sorted({match.group().decode() for part in readable(pid) for match in marker.finditer(part)})
        except OSError:
            seen[pid] = []
    return seen
'''
"""Program that searches the memory of its sandbox for markers; its own text contains none."""


async def leave_markers(runtime: ProcessRuntime, folder: Path, name: str) -> Instance:
    """Make requests of every kind whose data contains a marker."""
    mark = f"marker-{name}"
    (folder / mark).mkdir(exist_ok=True)
    spec = InstanceSpec(env={"MARK": mark}, mounts={f"/home/agent/{mark}/mount": str(folder / mark)})
    other = await runtime.start(spec)
    await other.write(f"{mark}-file", mark.encode())
    await other.move(f"{mark}-file", f"{mark}-moved")
    await other.make_directory(f"{mark}-folder")
    await other.list(recursive=True)
    with pytest.raises(FileNotFoundError):
        await other.read(f"{mark}-missing")
    await other.exec(["echo", mark], env={"MARK": mark}, cwd=f"/home/agent/{mark}-folder")
    await other.run("bash", f"echo {mark}; cd {mark}-folder")
    await (await other.fork()).instance.run("bash", f"echo {mark}")
    await other.restore(await other.snapshot())
    return other


async def markers_seen_by(runtime: ProcessRuntime) -> dict[str, set[str]]:
    """Return the markers that a Python session and a command of a new sandbox see in the memory of all its processes."""
    new = await runtime.start()
    await new.run("bash", "cd")
    result = await new.run("python", SCAN + "\nprint(json.dumps(found()))")
    assert result.error is None, result
    command = await new.exec(["python3", "-c", SCAN + "\nprint(json.dumps(found()))"])
    assert command.exit_code == 0, command
    seen = {"session": json.loads(result.stdout), "command": json.loads(command.stdout)}
    await new.stop()
    return {name: {mark for marks in pids.values() for mark in marks} for name, pids in seen.items()}


@pytest.mark.promise("containment:memory-of-others")
async def test_a_new_sandbox_finds_no_data_of_other_sandboxes_in_its_memory(tmp_path: Path) -> None:
    with anyio.fail_after(90):
        async with ProcessRuntime(preload=(), idle=False) as runtime:
            await leave_markers(runtime, tmp_path, "first")
            # The search works: it finds the marker that it made itself.
            only_own = {"session": {"marker-own"}, "command": {"marker-own"}}
            assert await markers_seen_by(runtime) == only_own
            other = await leave_markers(runtime, tmp_path, "second")
            await other.run("python", "mark = 'marker-' + 'third'")
            zygote = trusted_processes().zygote
            os.kill(zygote, signal.SIGKILL)
            await ended(zygote)
            assert await markers_seen_by(runtime) == only_own
