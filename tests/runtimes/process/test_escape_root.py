"""Root inside has power only over its own sandbox's files and users."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from runtimes import Instance
from runtimes.process import ProcessRuntime
from tests.runtimes.process.escapes import PRELUDE

IN_SHELL = {
    "mounts": ("mount -t tmpfs none /mnt", "(?i).*(permission denied|not permitted|must be superuser).*"),
    "mounts over /proc": ("mount -t proc none /proc", "(?i).*(permission denied|not permitted).*"),
    "leaves its root": ("chroot / true", ".*not permitted.*"),
    "enters other namespaces": ("nsenter -t 1 -m -p true", ".*(No such file|denied|not permitted).*"),
    "makes namespaces": ("unshare -m true", ".*not permitted.*"),
    "makes devices": ("mknod /tmp/disk b 254 0", ".*not permitted.*"),
    "changes the system": ("echo x > /usr/bin/env", ".*Read-only file system.*"),
    "names the machine": ("hostname evil", ".*(not permitted|must be root|denied).*"),
    "sets the clock": ("date -s 2001-01-01 > /dev/null", ".*not permitted.*"),
    "kills the first process": ("kill -9 1 && echo done", ".*(not permitted|No such process).*"),
    "sees other users' processes": ("ls -d /proc/1", ".*No such file.*"),
    "reads the kernel's log": ("dmesg", ".*(not permitted|denied).*"),
    "maps more ids": ("echo 0 0 1 > /proc/self/uid_map", ".*(not permitted|I/O error).*"),
    "gives files away": ("touch f; chown 4242424 f", ".*Invalid argument.*"),
}
IN_PYTHON = {
    "raises what it lacks": ("attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))", "EPERM"),
    "raises a limit": ("call(160, 6, b'\\xff' * 16)", "EPERM"),
    "has raw sockets": ("attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)", "EPERM"),
    "opens files by handle": ("call(304, -100, bytes(136), 0)", "EPERM"),
    "traces": ("call(101, 16, 1, 0, 0)", "EPERM"),
    "loads programs into the kernel": ("call(321, 0, bytes(72), 72)", "EPERM"),
    "reads its supervisor's memory": ("attempt(open, f'/proc/{os.getppid()}/mem')", "(ENOENT|EACCES)"),
    "reads a session's memory": (
        (
            "sorted({attempt(open, f'/proc/{p}/mem') for p in os.listdir('/proc') if p.isdigit() and "
            "p not in (str(os.getpid()), str(os.getppid()))})"
        ),
        r"\[('EACCES')?\]",
    ),
}
pytestmark = [pytest.mark.timeout(200), pytest.mark.promise("containment:root-inside")]


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture(scope="module")
async def instance(runtime: ProcessRuntime) -> Instance:
    """One instance for all attempts: preparing root inside is slow, and no attempt may change anything."""
    if not runtime.capabilities.root:
        pytest.skip("this user has one id only, so there is no root inside")
    instance = await runtime.start()
    await instance.run("python", "x = 1")
    return instance


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file of the host."""
    (tmp_path / "marker").write_text("host", encoding="utf-8")
    return tmp_path / "marker"


@pytest.mark.parametrize("attempt", IN_SHELL)
async def test_root_inside_lacks_the_power_of_root_outside_in_a_shell(
    instance: Instance, attempt: str
) -> None:
    code, seen = IN_SHELL[attempt]
    done = await instance.exec(["sh", "-c", code], user="root")
    assert re.fullmatch(seen, (done.stdout + done.stderr).decode(), re.DOTALL), done


@pytest.mark.parametrize("attempt", IN_PYTHON)
async def test_root_inside_lacks_the_power_of_root_outside_in_a_program(
    instance: Instance, attempt: str
) -> None:
    code, seen = IN_PYTHON[attempt]
    await instance.write("attempt.py", f"{PRELUDE}\nprint({code})".encode())
    done = await instance.exec([sys.executable, "-I", "attempt.py"], user="root", cwd="/home/agent")
    assert re.fullmatch(seen, done.stdout.decode().strip()), done


async def test_root_inside_owns_the_files_of_its_sandbox(instance: Instance) -> None:
    code = "id -u; touch /etc/made; chown agent /etc/made; stat -c %U /etc/made; touch /home/agent/made"
    done = await instance.exec(["sh", "-c", code], user="root")
    assert done.stdout.decode().split() == ["0", "agent"], done


async def test_root_inside_reaches_no_file_of_the_host_or_of_a_fork(
    instance: Instance, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marker.write_text("host", encoding="utf-8")
    fork = (await instance.fork()).instance
    await fork.write("of-the-fork", b"")
    await instance.write("of-its-own", b"")
    # Skips the shared read-only trees, which are large.
    find = f"find / /dev /dev/shm -xdev -name of-the-fork -o -name of-its-own 2>/dev/null; cat {marker}"
    done = await instance.exec(["sh", "-c", find], user="root")
    assert done.stdout == b"/home/agent/of-its-own\n"
    assert b"No such file" in done.stderr


async def test_a_set_user_id_program_of_root_inside_gives_no_power(instance: Instance) -> None:
    made = "cp /usr/bin/id /tmp/id; chown root /tmp/id; chmod 4755 /tmp/id"
    assert (await instance.exec(["sh", "-c", made], user="root")).exit_code == 0
    assert (await instance.run("bash", "[[ $(/tmp/id -u) == $UID ]] && echo harmless")).stdout == "harmless\n"
