"""Processes of a fork group see of each other what docs/security.md says, and nothing of other groups."""

import json

import pytest

from runtimes import Instance
from runtimes.process import ProcessRuntime

LOOK = """
import ctypes, fcntl, json, os, resource, struct, time
libc = ctypes.CDLL(None)
own = {int(name) for name in os.listdir("/proc") if name.isdigit()}

def tell(pid):
    read = {
        "group": lambda: os.getpgid(pid),
        "session": lambda: os.getsid(pid),
        "priority": lambda: os.getpriority(os.PRIO_PROCESS, pid),
        "schedule": lambda: os.sched_getscheduler(pid),
        "CPUs": lambda: os.sched_getaffinity(pid),
        "CPU time": lambda: time.clock_gettime(~pid << 3 | 2),
        "capabilities": lambda: libc.capget(struct.pack("Ii", 0x20080522, pid), bytes(24)) and os.close(-1),
        "end": lambda: os.close(os.pidfd_open(pid)),
        "signals": lambda: os.kill(pid, 0),
        "limits": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE),
        "name": lambda: open(f"/proc/{pid}/comm").read(),
        "arguments": lambda: open(f"/proc/{pid}/cmdline").read(),
        "environment": lambda: open(f"/proc/{pid}/environ").read(),
        "files": lambda: os.listdir(f"/proc/{pid}/fd"),
        "memory": lambda: open(f"/proc/{pid}/mem"),
    }
    seen = []
    for kind, function in read.items():
        try:
            function()
            seen.append(kind)
        except OSError:
            pass
    return seen

def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

print(json.dumps({pid: tell(pid) for pid in range(2, 1000) if pid not in own and exists(pid)}))
"""
VISIBLE = ["group", "session", "priority", "schedule", "CPUs", "CPU time", "capabilities", "end"]


async def look(instance: Instance) -> dict[str, list[str]]:
    """Return what a sandbox sees of each process that is not its own."""
    return json.loads((await instance.run("python", LOOK)).stdout)


@pytest.mark.promise("fork:visible")
async def test_a_fork_sees_the_ids_and_times_of_its_parent_s_processes_and_nothing_else(
    runtime: ProcessRuntime,
) -> None:
    parent, stranger = await runtime.start(), await runtime.start()
    pid = (await parent.run("python", "import os\nos.getpid()")).value
    await stranger.run("python", "import os")
    fork = (await parent.fork()).instance
    assert await look(fork) == {pid: VISIBLE}
    # Another group has another pid namespace.
    assert await look(stranger) == {}
