"""Check each promise of isolation on the machine as this process sees it, and print the results as JSON."""

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypedDict

import anyio
import psutil

from agentflow.errors import AgentFlowError
from runtimes import InstanceSpec, Limits, Outcome
from runtimes.process import ProcessRuntime
from tests.attacks._sandboxes import ATTACKS, POWERS_WITHOUT_RANGE, Role, attack_sandboxes
from tests.attacks._table import not_contained
from tests.runtimes.process.escape_run import PROBES
from tests.runtimes.process.machine import descendants, ended, trusted_processes

_MIB = 1 << 20
_BY_CATEGORY = {
    "host-files": "files: ",
    "host-processes": "processes: ",
    "host-network": "network: ",
    "privileges": "system calls: ",
    "disk-limits": "quotas: (disk|files): ",
    "process-limit": "quotas: processes: ",
}
_HOLD = """
import os
children = []
for n in range(3):
    reader, writer = os.pipe()
    children.append(os.fork())
    if children[-1] == 0:
        kept = bytes(b"x" * (160 << 20))
        os.write(writer, b"x")
        os.read(os.pipe()[0], 1)
    os.close(writer)
    os.read(reader, 1)
print(sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children), flush=True)
"""
_SERVER = """
import anyio
from runtimes.process import ProcessRuntime
async def main():
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        instance = await runtime.start()
        await instance.run("bash", "(setsid sleep 987 &) ; sleep 0")
        await instance.run("python", "x = 1")
        print("ready", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


class DegradedReport(TypedDict):
    """Results of one machine."""

    lacks: list[str]
    """Mechanisms that the runtime misses."""
    holds: dict[str, bool]
    """State of each promise: true if it holds in full."""
    seen: dict[str, str]
    """Observations that show that a promise does not hold."""


async def _memory_of_all(runtime: ProcessRuntime) -> bool:
    """Three processes can't hold more memory together than the limit of their sandbox."""
    limits = Limits(memory_bytes=256 * _MIB, wall_seconds=60)
    instance = await runtime.start(InstanceSpec(limits=limits))
    done = await instance.exec([sys.executable, "-c", _HOLD])
    await instance.stop()
    return done.outcome is Outcome.OUT_OF_MEMORY or done.stdout != b"3\n"


async def _share_of_the_cpu(runtime: ProcessRuntime) -> bool:
    """Processes of a sandbox are in a cgroup of the runtime."""
    instance = await runtime.start()
    await instance.run("python", "x = 1")
    groups = {group for pid in trusted_processes().sandboxed() for group in _cpu_groups(pid)}
    await instance.stop()
    return any("agentflow-" in group for group in groups)


def _cpu_groups(pid: int) -> list[str]:
    """Return the cgroups of a process that limit the CPU: that of version 2, and that of its controller in version 1."""
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    fields = [line.split(":", 2) for line in lines]
    return [path for _, names, path in fields if names == "" or "cpu" in names.split(",")]


async def _neighbours(runtime: ProcessRuntime) -> bool:
    """Two sandboxes can't reach each other, and are different users of the host."""
    for probe, expected in PROBES.values():
        if not re.fullmatch(expected, await probe(runtime)):
            return False
    one, two = await runtime.start(), await runtime.start()
    users: list[set[int]] = []
    before: set[int] = set(trusted_processes().sandboxed())
    for instance in (one, two):
        await instance.run("python", "x = 1")
        now = set(trusted_processes().sandboxed())
        users.append({psutil.Process(pid).uids().real for pid in now - before})
        before = now
    await one.stop()
    await two.stop()
    return not users[0] & users[1]


async def _kernel_quotas(runtime: ProcessRuntime) -> bool:
    """A sandbox that takes all inotify instances that it gets leaves some to another one."""
    one, two = await runtime.start(), await runtime.start()
    take = "import ctypes; libc = ctypes.CDLL(None); kept = []\nwhile (fd := libc.inotify_init1(0)) >= 0: kept.append(fd)"
    await one.run("python", take)
    left = await two.run("python", "import ctypes; ctypes.CDLL(None).inotify_init1(0) >= 0")
    await one.stop()
    await two.stop()
    return left.value == "True"


async def _cleanup(runtime: ProcessRuntime) -> bool:
    """All processes of a killed server's sandboxes end."""
    async with await anyio.open_process([sys.executable, "-c", _SERVER]) as server:
        assert server.stdout is not None
        await server.stdout.receive()
        started = descendants(server.pid)
        server.kill()
        await server.wait()
    with anyio.move_on_after(60):
        for pid in started:
            await ended(pid)
        return True
    return False


async def _fork(runtime: ProcessRuntime) -> bool:
    instance = await runtime.start()
    await instance.run("python", "x = 1")
    try:
        fork = (await instance.fork()).instance
    except AgentFlowError:
        return False
    value = (await fork.run("python", "x")).value
    await fork.stop()
    await instance.stop()
    return value == "1"


async def _root(runtime: ProcessRuntime) -> bool:
    instance = await runtime.start()
    try:
        done = await instance.exec(["id", "-u"], user="root")
    except (AgentFlowError, OSError):
        return False
    finally:
        await instance.stop()
    return done.stdout == b"0\n"


_CHECKS: dict[str, Callable[[ProcessRuntime], Awaitable[bool]]] = {
    "memory-limit": _memory_of_all,
    "kernel-quotas": _kernel_quotas,
    "cpu-share": _share_of_the_cpu,
    "neighbours": _neighbours,
    "cleanup": _cleanup,
    "live-forks": _fork,
    "root-inside": _root,
}


async def run(*roles: Role) -> DegradedReport:
    """Check every promise, with attacks by these processes."""
    os.environ["AGENTFLOW_ESCAPE"] = "1"
    outcomes = await attack_sandboxes(ATTACKS, roles)
    async with ProcessRuntime(preload=("numpy",), idle=False) as runtime:
        lacks = runtime.lacks
        holds = {name: await check(runtime) for name, check in _CHECKS.items()}
    own = POWERS_WITHOUT_RANGE if "id-range" in lacks else frozenset[str]()
    table = [attack for attack in ATTACKS if attack.id not in own]
    seen = {role: not_contained(table, found) for role, found in outcomes.items()}
    failed = {f"{role}: {id}": text for role, found in seen.items() for id, text in found.items()}
    for name, pattern in _BY_CATEGORY.items():
        holds[name] = not any(re.match(f"[a-z]+: {pattern}", id) for id in failed)
    return DegradedReport(lacks=sorted(lacks), holds=holds, seen=failed)


def main() -> None:
    """Print the report."""
    sys.stdout.write(json.dumps(anyio.run(run, "command", "session")))


def main_short() -> None:
    """Print the report of the attacks by a command only."""
    sys.stdout.write(json.dumps(anyio.run(run, "command")))


if __name__ == "__main__":
    main()
