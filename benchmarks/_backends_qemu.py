"""QEMU machines: restored to the first screenshot, from the pool, a key to its pixel, forks and their memory.

The baseline of the first is QEMU alone: without a guest, unconfined, until it shows its empty screen.
"""

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import anyio

from benchmarks._rows import Row
from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests.runtimes.qemu._guests import guest, own_memory

ROUNDS = 9
KEYS = 30
FORKS = 100
ALONE = [
    "qemu-system-x86_64", "-nodefaults", "-display", "none", "-M", "q35", "-m", "512M", "-device", "VGA", "-S",
    "-qmp", "stdio",
]  # fmt: skip


def since(begin: float) -> float:
    """Milliseconds since then."""
    return (time.perf_counter() - begin) * 1000


def qemu_alone(folder: str) -> float:
    """Milliseconds until QEMU has shown its screen."""
    begin = time.perf_counter()
    with subprocess.Popen(ALONE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as qemu:
        assert qemu.stdin is not None
        assert qemu.stdout is not None
        show = {"execute": "screendump", "arguments": {"filename": f"{folder}/alone.ppm"}, "id": "shown"}
        for command in ({"execute": "qmp_capabilities"}, show):
            qemu.stdin.write(json.dumps(command) + "\n")
        qemu.stdin.flush()
        for line in qemu.stdout:
            if json.loads(line).get("id") == "shown":
                break
        milliseconds = since(begin)
        qemu.kill()
    return milliseconds


async def to_first_screenshot(runtime: QemuRuntime) -> float:
    """Return the milliseconds until the first screenshot of a new machine."""
    begin = time.perf_counter()
    machine = await runtime.start()
    await machine.screenshot()
    milliseconds = since(begin)
    await machine.stop()
    return milliseconds


async def key_to_pixel(machine: QemuMachine) -> float:
    """Return the milliseconds until a pressed key is visible."""
    before = (await machine.screenshot()).png
    begin = time.perf_counter()
    await machine.key("x", down=True)
    while (await machine.screenshot()).png == before:
        pass
    milliseconds = since(begin)
    await machine.key("x", down=False)
    return milliseconds


async def screenshot(machine: QemuMachine) -> float:
    """Milliseconds for a picture."""
    begin = time.perf_counter()
    await machine.screenshot()
    return since(begin)


async def fork(machine: QemuMachine) -> tuple[float, float]:
    """Milliseconds for a fork, and the MiB of the guest's memory that only the fork has."""
    begin = time.perf_counter()
    copy = await machine.fork()
    milliseconds = since(begin)
    mebibytes = own_memory(copy) / (1 << 20)
    await copy.stop()
    return milliseconds, mebibytes


async def measure() -> list[Row]:
    """The figures."""
    image = await anyio.to_thread.run_sync(guest, "tiny")
    with tempfile.TemporaryDirectory() as folder:
        settings = QemuSettings(image=image, state_dir=Path(folder))
        async with QemuRuntime(settings) as runtime:
            begin = time.perf_counter()
            await runtime.warmup()
            booted = since(begin)
            restored: list[float] = []
            alone: list[float] = []
            for _ in range(ROUNDS):
                alone.append(await anyio.to_thread.run_sync(qemu_alone, folder))
                restored.append(await to_first_screenshot(runtime))
            machine = await runtime.start()
            keys = [await key_to_pixel(machine) for _ in range(KEYS)]
            pictures = [await screenshot(machine) for _ in range(KEYS)]
            forks = [await fork(machine) for _ in range(FORKS)]
        async with QemuRuntime(settings.model_copy(update={"pool": 2})) as runtime:
            pooled: list[float] = []
            for _ in range(ROUNDS):
                await runtime.warmup()
                pooled.append(await to_first_screenshot(runtime))
    times, mebibytes = zip(*forks, strict=True)
    beside = statistics.median(alone)
    plain = "QEMU without a guest"
    return [
        Row("vm_restore_to_screenshot_ms", statistics.median(restored), beside, plain, floor=700.0),
        Row("vm_from_pool_to_screenshot_ms", statistics.median(pooled), beside, plain),
        Row("vm_key_to_pixel_ms", statistics.median(keys), floor=60.0),
        Row("vm_screenshot_ms", statistics.median(pictures)),
        Row("vm_fork_ms", statistics.median(times), beside, plain),
        Row("vm_fork_p99_ms", statistics.quantiles(times, n=100)[98], beside, plain),
        Row("vm_fork_own_mib", statistics.median(mebibytes), settings.memory_mib, "memory of the guest"),
        Row("vm_boot_once_ms", booted, floor=25_000.0),
    ]


if __name__ == "__main__":
    for row in anyio.run(measure):
        print(row)
