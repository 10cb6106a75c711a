"""Sandboxes that the attacks run in: as a command, as a live session, and as root inside."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from runtimes import Instance, InstanceSpec, Limits
from runtimes.process import ProcessRuntime
from tests.attacks import files, network, processes, quotas, system_calls
from tests.attacks._table import Attack
from tests.runtimes.process.escape_run import Host

Role = Literal["command", "session", "root"]
ROLES: Final[tuple[Role, ...]] = ("command", "session", "root")
"""Processes that attack: a single command, a live session, which holds the capabilities of a fork, and root inside."""

ATTACKS: Final[list[Attack]] = [
    *system_calls.ATTACKS,
    *network.ATTACKS,
    *files.ATTACKS,
    *processes.ATTACKS,
    *quotas.ATTACKS,
]
"""Attacks that need one sandbox."""

POWERS_OF_ROOT: Final = frozenset(
    {
        "system calls: setuid: each way",
        "system calls: setgid: each way",
        "files: file capabilities",
        "files: link: hard",
        "files: link: hard by a descriptor",
        "files: owner",
        "files: read the host's /root",
        "files: write /proc/self/projid_map",
    }
)
"""Rights of root inside over the files, users and namespace of its own sandbox."""

POWERS_WITHOUT_RANGE: Final = frozenset(
    {
        "files: read the host's /root",
        "files: sys is empty",
        "files: write /proc/self/projid_map",
        "files: write into the host's /sys",
        "processes: cpu of another",
        "processes: disk priority of another",
        "processes: limits of another",
        "processes: limits of another, read",
        "processes: priority of another",
        "processes: schedule of another",
    }
)
"""Rights over the pause process, the namespace and the system folders of its own sandbox, where all have one user id."""

_MIB = 1 << 20
_LIMITS = Limits(
    wall_seconds=300,
    memory_bytes=256 * _MIB,
    disk_bytes=32 * _MIB,
    file_bytes=16 * _MIB,
    files=2000,
    processes=40,
    open_files=256,
)
_PROGRAM = Path(__file__).with_name("_inside.py")
_COMMAND = [sys.executable, "-I", "_inside.py", "table.json", "report.json"]
_IN_SESSION = """
names = {'__name__': 'attack'}
exec(compile(open('_inside.py').read(), '_inside.py', 'exec'), names)
names['main']('table.json', 'report.json')
"""


def fill(code: str, names: Mapping[str, str]) -> str:
    """Replace `$NAME` by resources of the host."""
    for name, value in names.items():
        code = code.replace(f"${name}", value)
    return code


async def try_inside(instance: Instance, role: Role, table: Mapping[str, str]) -> dict[str, str]:
    """Try attacks, given as code by id, in a sandbox; return the outcomes by id."""
    await instance.write("_inside.py", _PROGRAM.read_bytes())
    await instance.write("table.json", json.dumps(table).encode())
    if role == "session":
        done = await instance.run("python", _IN_SESSION)
        failed = f"{done.outcome}: {done.stdout}{done.stderr}{done.error}"
    else:
        user = "root" if role == "root" else None
        result = await instance.exec(_COMMAND, user=user, cwd="/home/agent")
        failed = f"{result.outcome}, {result.exit_code}: {result.stderr.decode(errors='replace')}"
    try:
        return json.loads(await instance.read("report.json"))
    except FileNotFoundError:
        raise AssertionError(f"the attacks ended early: {failed}") from None


async def attack_sandboxes(table: Iterable[Attack], roles: Iterable[Role]) -> dict[str, dict[str, str]]:
    """Try attacks in a new sandbox for each role; return the outcomes by role and id."""
    seen: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        names = Host(stack).names
        codes = {attack.id: fill(attack.code, names) for attack in table}
        async with ProcessRuntime(preload=(), idle=False) as runtime:
            for role in roles:
                if role == "root" and not runtime.capabilities.root:
                    continue
                instance = await runtime.start(InstanceSpec(limits=_LIMITS))
                seen[role] = await try_inside(instance, role, codes)
                await instance.stop()
    return seen
