"""Escape attempts from containers: each is contained, and the host is unchanged."""

import re
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from runtimes import Instance, InstanceSpec, Limits
from runtimes.docker import DockerRuntime
from tests.runtimes.docker.conftest import TIERS
from tests.runtimes.process.escape_run import PROBES, Host, key, try_all
from tests.runtimes.process.escapes import ATTEMPTS, Attempt

# A container shows more of /proc, /sys and /dev than a process sandbox: read-only, masked, or harmless.
SHOWN = {
    "python: read /proc/kallsyms": "'done'",
    "bash: read /proc/kallsyms": "",
    "python: read /proc/sys/kernel/core_pattern": "'done'",
    "bash: read /proc/sys/kernel/core_pattern": ".*",
    "bash: see devices": "(core )?fd full (mqueue )?null ptmx pts random shm stderr stdin stdout tty urandom zero ",
    "python: touch a group of limits": r"\(True, .*\)",
}
DEVICES = "1[2-5]"

AS_ROOT = {
    "change how cores are dumped": "echo x > /proc/sys/kernel/core_pattern",
    "ask the kernel for what only its owner may": "echo h > /proc/sysrq-trigger",
    "lift its own limits": "cd /sys/fs/cgroup/memory || cd /sys/fs/cgroup; echo -1 > memory.limit_in_bytes || echo max > memory.max",
    "make a group": "cd /sys/fs/cgroup/memory || cd /sys/fs/cgroup; mkdir mine",
    "mount": "mount -t tmpfs none /mnt",
    "unmount": "umount /run/agentflow/lib/runtimes",
    "make a device": "mknod /tmp/disk b 254 0",
    "read the init process's memory": "head -c 1 /proc/1/mem",
    "read the init process's environment": "cat /proc/1/environ",
    "follow the init process's descriptors": "readlink /proc/1/fd/3",
    "change the library": "touch /run/agentflow/lib/runtimes/evil.py",
    "change the system": "touch /usr/evil /etc/evil",
    "call the server": "exec 9<>/run/agentflow/socket",
    "rename the machine": "hostname evil",
    "see the kernel's log": "dmesg",
    "load a module": "insmod /dev/null",
    "set the clock": "date -s 2001-01-01",
}
"""Attempts of root inside; each must fail."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one tier."""

    seen: dict[str, str]
    probes: dict[str, str]
    as_root: dict[str, int]
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module", params=TIERS)
def tried(request: pytest.FixtureRequest) -> DockerRuntime:
    """Run the attempts in each tier."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
async def report(tried: DockerRuntime) -> Report:
    """Results of every attempt."""
    with ExitStack() as stack:
        host = Host(stack)
        before = host.fingerprint()
        instance = await tried.start(InstanceSpec(limits=Limits(wall_seconds=60)))
        seen = await try_all(instance, host.names)
        as_root = {name: await root_status(instance, code) for name, code in AS_ROOT.items()}
        await instance.stop()
        probes = {name: await probe(tried) for name, (probe, _) in PROBES.items()}
        after = host.fingerprint()
    for mounts in (before, after):
        # The engine mounts the roots of its containers.
        del mounts["mounts"]
    return Report(seen, probes, as_root, before, after)


async def root_status(instance: Instance, code: str) -> int:
    return (await instance.exec(["sh", "-c", code], user="root")).exit_code


@pytest.mark.promise("docker:escapes")
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=key)
async def test_an_attempt_is_contained(report: Report, attempt: Attempt) -> None:
    seen = report.seen[key(attempt)]
    assert re.fullmatch(SHOWN.get(key(attempt), attempt.seen), seen, re.DOTALL), seen


@pytest.mark.promise("docker:escapes")
@pytest.mark.parametrize("attempt", AS_ROOT)
async def test_an_attempt_by_root_inside_is_contained(report: Report, attempt: str) -> None:
    assert report.as_root[attempt] != 0


@pytest.mark.promise("docker:escapes")
@pytest.mark.parametrize("probe", PROBES)
async def test_containers_cannot_see_each_other(report: Report, probe: str) -> None:
    pattern = DEVICES if probe == "devices" else PROBES[probe][1]
    assert re.fullmatch(pattern, report.probes[probe]), report.probes[probe]


@pytest.mark.promise("docker:escapes")
async def test_the_host_is_unchanged(report: Report) -> None:
    assert report.before == report.after
