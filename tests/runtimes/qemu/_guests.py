"""Guests of the tests, built by the project's own script, and what can be seen of a machine."""

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
    """The folder of a guest; built once for each change of what builds it."""
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
    """The lines of the text console of the tiny guest, without what is empty at the end."""
    result = await machine.exec(["cat", "/dev/vcs1"])
    assert result.exit_code == 0, result.stderr
    text = result.stdout.decode("cp437")
    lines = [text[start : start + 80].rstrip() for start in range(0, len(text), 80)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    with anyio.fail_after(_GUARD):
        while not await condition():
            await anyio.lowlevel.checkpoint()


async def shows(machine: QemuMachine, line: str) -> None:
    """Wait until a line stands on the console."""

    async def there() -> bool:
        return line in await console(machine)

    await until(there)


def process_of(machine: QemuMachine) -> psutil.Process:
    """The process that computes for the guest."""
    below = psutil.Process(machine.qemu.pid).children(recursive=True)
    return next(process for process in below if process.name().startswith("qemu-system"))
