"""Guests built by the project's script, and helpers that read their screens."""

import fcntl
import hashlib
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil

from runtimes.qemu import QemuMachine

ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = ROOT / "scripts/make-guest"
_GUARD = 100


def guest(kind: str) -> Path:
    """Return the directory of a guest; it is built once for each change of its build inputs."""
    parts = [_SCRIPT, *sorted(_SCRIPT.with_name("make-guest.d").iterdir())]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:12]
    folder = ROOT / "build/guests" / f"{kind}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "image.json").exists():
            done = subprocess.run([_SCRIPT, kind, folder], capture_output=True, encoding="utf-8", check=False)
            assert done.returncode == 0, done.stderr
    return folder


async def console(machine: QemuMachine) -> list[str]:
    """Return the lines of the tiny guest's text console, without trailing empty ones."""
    result = await machine.exec(["cat", "/dev/vcs1"])
    assert result.exit_code == 0, result.stderr
    text = result.stdout.decode("cp437")
    lines = [text[start : start + 80].rstrip() for start in range(0, len(text), 80)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    with anyio.fail_after(_GUARD):
        while not await condition():
            await anyio.lowlevel.checkpoint()


async def shows(machine: QemuMachine, line: str) -> None:
    """Wait until a line is on the console."""

    async def there() -> bool:
        return line in await console(machine)

    await until(there)


def process_of(machine: QemuMachine) -> psutil.Process:
    """Return the QEMU process."""
    below = psutil.Process(machine.qemu.pid).children(recursive=True)
    return next(process for process in below if process.name().startswith("qemu-system"))


def own_memory(machine: QemuMachine) -> int:
    """Return the bytes of the guest's memory that its QEMU shares with no other machine."""
    maps = process_of(machine).memory_maps(grouped=False)
    return sum(part.anonymous for part in maps if part.path.startswith("/memfd:memory"))
