"""Try every attempt of the table as the current user and print the observations as JSON.

Run as a program: as root, as an ordinary user with a range of ids, or as one without.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

import anyio

from runtimes import Instance, InstanceSpec, Limits, RunResult, Runtime
from runtimes.process import ProcessRuntime
from tests.runtimes.process.escapes import ATTEMPTS, PRELUDE, Attempt

SECRET = "host secret"
_HEAP = "heap-" + secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Report:
    """Observations of one run of the table."""

    seen: dict[str, str]
    """Observation inside by attempt (`language: name`)."""
    outside: dict[str, str]
    """Observation outside by attempt."""
    probes: dict[str, str]
    """Observation by probe, which needs two sandboxes."""
    before: dict[str, str]
    """Fingerprint of the host before."""
    after: dict[str, str]
    """Fingerprint of the host after."""
    single_user: bool
    """The user had no range of ids."""


class Host:
    """Resources of the host that no sandbox may see or touch."""

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="escape-")))
        folder.chmod(0o777)
        self._marker = folder / "marker"
        self._marker.write_text(SECRET, encoding="utf-8")
        self._home_marker = Path.home() / f".escape-{secrets.token_hex(4)}"
        self._home_marker.write_text(SECRET, encoding="utf-8")
        stack.callback(self._home_marker.unlink)
        self._folder = folder / "open"
        self._folder.mkdir()
        self._folder.chmod(0o777)
        self._process = stack.enter_context(subprocess.Popen(["/bin/sleep", "3600"]))
        stack.callback(self._process.kill)
        abstract = f"escape-{secrets.token_hex(4)}"
        self._listen(stack, socket.AF_UNIX, f"\0{abstract}")
        self._listen(stack, socket.AF_UNIX, str(folder / "socket"))
        port = self._listen(stack, socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        self.names = {
            "ABSTRACT": abstract,
            "HOME_MARKER": str(self._home_marker),
            "HOST_FOLDER": str(self._folder),
            "MARKER": str(self._marker),
            "PID": str(self._process.pid),
            "PORT": str(port),
            "PREFIX": sys.prefix,
            "SOCKET": str(folder / "socket"),
            "SOURCE": str(Path(__file__).parents[3]),
        }

    def _listen(self, stack: ExitStack, family: int, address: str | tuple[str, int]) -> socket.socket:
        sock = stack.enter_context(socket.socket(family))
        sock.bind(address)
        if isinstance(address, str) and not address.startswith("\0"):
            os.chmod(address, 0o777)
        sock.listen(64)
        return sock

    def fingerprint(self) -> dict[str, str]:
        """Return the state that must be unchanged afterwards."""
        sysctls = ("kernel/hostname", "kernel/core_pattern", "kernel/domainname", "vm/swappiness")
        return {
            "marker": self._marker.read_text(encoding="utf-8"),
            "home": self._home_marker.read_text(encoding="utf-8"),
            "folder": str(sorted(os.listdir(self._folder))),
            "process": str(self._process.poll()),
            "mounts": Path("/proc/self/mountinfo").read_text(encoding="utf-8"),
            "swaps": str(
                [line.split()[0] for line in Path("/proc/swaps").read_text(encoding="utf-8").splitlines()]
            ),
            "prefix": str(sorted(os.listdir(sys.prefix))),
            **{name: Path("/proc/sys", name).read_text(encoding="utf-8") for name in sysctls},
        }


def key(attempt: Attempt) -> str:
    """Return an attempt's key in a report."""
    return f"{attempt.language}: {attempt.name}"


def _fill(code: str, names: Mapping[str, str]) -> str:
    return Template(re.sub(r"\$(?!(" + "|".join(names) + r")\b)", "$$", code)).substitute(names)


def _seen(result: RunResult) -> str:
    if result.value is not None:
        return result.value
    error = result.error.traceback if result.error else ""
    return (result.stdout + result.stderr + error).removesuffix("\n")


def _outside(attempt: Attempt, names: Mapping[str, str]) -> str:
    code = _fill(attempt.code, names)
    if attempt.language == "python":
        command = [sys.executable, "-c", f"{PRELUDE}\nprint(repr({code}), end='')"]
    else:
        command = ["/bin/bash", "-c", f"PATH=/usr/bin:/bin; {code}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    for left in os.listdir(names["HOST_FOLDER"]):
        os.unlink(os.path.join(names["HOST_FOLDER"], left))
    return done.stdout + done.stderr


async def try_all(instance: Instance, names: Mapping[str, str]) -> dict[str, str]:
    """Return the observation of every attempt inside."""
    await instance.run("python", PRELUDE)
    seen: dict[str, str] = {}
    for attempt in ATTEMPTS:
        code = _fill(attempt.code, names)
        if attempt.language == "bash":
            code = f"{{ {code}; }} 2>&1"
        seen[key(attempt)] = _seen(await instance.run(attempt.language, code))
    return seen


SCAN = """
import os, re
def scan(pid, letters):
    pattern = re.compile(b"".join(b"[" + letter.encode() + b"]" for letter in letters))
    for line in open(f"/proc/{pid}/maps"):
        where, rights = line.split()[:2]
        start, end = (int(part, 16) for part in where.split("-"))
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            try:
                memory.seek(start)
                content = memory.read(end - start) if "r" in rights else b""
            except (OSError, OverflowError, ValueError):
                continue
        for match in pattern.finditer(content):
            return "found"
    return "not found"
"""
"""Search a process's memory for a word given as letters, without holding the word itself."""


async def _heap(runtime: Runtime) -> str:
    """Data sent to one sandbox is not in the memory that another starts with."""
    trusting = await runtime.start(InstanceSpec(env={"TOLD": _HEAP}))
    letters = list(_HEAP)
    in_own_memory = await trusting.run(
        "python", f"{SCAN}\nword = os.environ['TOLD']\nscan('self', {letters!r})"
    )
    await trusting.run("bash", "echo $TOLD")
    await trusting.exec(["true", _HEAP])
    other = await runtime.start()
    session = await other.run("python", f"{SCAN}\nscan('self', {letters!r})")
    await other.write("scan.py", f"{SCAN}\nprint(scan(os.getppid(), {letters!r}))".encode())
    command = await other.exec([sys.executable, "scan.py"])
    supervisor = command.stdout.decode() or command.stderr.decode().splitlines()[-1].split(":")[0]
    return f"own: {in_own_memory.value}, session: {session.value}, supervisor: {supervisor.strip()}"


async def _neighbour(runtime: Runtime) -> str:
    """Another sandbox's files, shared memory, loopback and processes are invisible."""
    first, second = await runtime.start(), await runtime.start()
    await first.run(
        "bash",
        "echo s > ~/neighbour-secret; echo s > /dev/shm/neighbour-secret; echo s > /tmp/neighbour-secret",
    )
    await first.run("python", "import socket; server = socket.create_server(('127.0.0.1', 4711))")
    await second.run("bash", "touch ~/own-file")
    # Skips the shared read-only trees, which are large.
    visible = await second.run(
        "bash",
        "find / /home/agent /dev /dev/shm -xdev -name neighbour-secret -o -name own-file 2>/dev/null | sort -u",
    )
    port = await second.run("bash", "echo > /dev/tcp/127.0.0.1/4711")
    processes = await second.run(
        "bash", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c AGENTFLOW_ESCAPE"
    )
    return f"{visible.stdout.strip()} {port.exit_code} {processes.stdout.strip()}"


async def _devices(runtime: Runtime) -> str:
    """The shared devices can't carry data between sandboxes."""
    first, second = await runtime.start(), await runtime.start()
    await first.run("bash", "touch /dev/note; rm -f /dev/stdin /dev/fd; ln -s / /dev/way; echo x > /dev/null")
    return (await second.run("bash", "ls /dev | wc -l")).stdout.strip()


async def _files_of_processes(runtime: Runtime) -> str:
    """File operations can't open anything in /proc."""
    instance = await runtime.start()
    answers: list[str] = []
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: instance.read("/proc/1/environ"),
        lambda: instance.read("/proc/self/status"),
        lambda: instance.read("/proc/1/root/etc/passwd"),
        lambda: instance.list("/proc"),
        lambda: instance.write("/proc/1/mem", b"x", append=True),
    ]
    for operation in operations:
        try:
            await operation()
            answers.append("done")
        except OSError as error:
            answers.append(type(error).__name__)
    return " ".join(answers)


async def _random(runtime: Runtime) -> str:
    """Sessions forked from one interpreter draw different random numbers."""
    draw = "import random, numpy, uuid\n(random.random(), numpy.random.rand(), uuid.uuid4())"
    first, second = [(await (await runtime.start()).run("python", draw)).value for _ in range(2)]
    return str(first is not None and first != second)


async def _poison(runtime: Runtime) -> str:
    """Changes that a session makes to its modules are invisible to the next."""
    first = await runtime.start()
    await first.run(
        "python",
        "import sys, json, os\njson.loads = None\nsys.modules['poison'] = sys\nos.environ['POISON'] = '1'",
    )
    second = await runtime.start()
    seen = await second.run(
        "python", "import sys, json, os\njson.loads('1'), 'poison' in sys.modules, 'POISON' in os.environ"
    )
    return str(seen.value)


async def _group_kill(runtime: Runtime) -> str:
    """`kill(-1)` ends only the sandbox's own processes."""
    first, second = await runtime.start(), await runtime.start()
    await second.run("python", "x = 1")
    killed = await first.run(
        "python",
        "import contextlib, os\nwith contextlib.suppress(OSError):\n    os.kill(-1, 9)\nos.kill(os.getpid(), 9)",
    )
    again = await first.run("python", "2")
    return f"{killed.outcome} {again.value} {(await second.run('python', 'x')).value}"


PROBES = {
    "devices": (_devices, "13"),
    "files of processes": (
        _files_of_processes,
        "((PermissionError|FileNotFoundError|OSError) ?){5}",
    ),
    "group kill": (_group_kill, "ended 2 1"),
    "heap": (_heap, "own: 'found', session: 'not found', supervisor: (FileNotFoundError|PermissionError)"),
    "neighbour": (_neighbour, "/home/agent/own-file 1 0"),
    "poison": (_poison, r"\(1, False, False\)"),
    "random": (_random, "True"),
}
"""Probes with two sandboxes, and the pattern that their observation must match."""


async def run() -> Report:
    """Try every attempt."""
    with ExitStack() as stack:
        host = Host(stack)
        before = host.fingerprint()
        outside = {key(a): _outside(a, host.names) for a in ATTEMPTS if a.outside is not None}
        async with ProcessRuntime(preload=("numpy",), idle=False) as runtime:
            single = runtime.capabilities.fork == "none"
            limits = Limits(wall_seconds=60)
            seen = await try_all(await runtime.start(InstanceSpec(limits=limits)), host.names)
            probes = {name: await probe(runtime) for name, (probe, _) in PROBES.items()}
        return Report(seen, outside, probes, before, host.fingerprint(), single)


def main() -> None:
    """Print the report."""
    os.environ["AGENTFLOW_ESCAPE"] = "1"
    sys.stdout.write(json.dumps(asdict(anyio.run(run))))


if __name__ == "__main__":
    main()
