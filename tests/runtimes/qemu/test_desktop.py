"""Desktop guest, built, booted and used: the mouse moves, a click focuses, typed text appears."""

from pathlib import Path

import pytest

from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests.runtimes.qemu._guests import guest, until


async def random_bytes(machine: QemuMachine) -> bytes:
    return (await machine.exec(["head", "-c", "16", "/dev/urandom"])).stdout


async def click(machine: QemuMachine, x: int, y: int) -> None:
    await machine.move(x, y)
    await machine.button("left", down=True)
    await machine.button("left", down=False)


async def wrote(machine: QemuMachine, path: str, text: bytes) -> None:
    """Wait until a file has this content."""

    async def there() -> bool:
        try:
            return await machine.read(path) == text
        except FileNotFoundError:
            return False

    await until(there)


async def focused(machine: QemuMachine, application: str) -> None:
    """Wait until a window of that application has the focus."""

    async def it_is() -> bool:
        return application in {window.application for window in await machine.windows() if window.focused}

    await until(it_is)


@pytest.mark.soak
@pytest.mark.promise("qemu:desktop")
async def test_the_desktop_guest_works_like_any_computer(tmp_path: Path) -> None:
    settings = QemuSettings(image=guest("desktop"), state_dir=tmp_path / "states", boot_seconds=600.0)
    async with QemuRuntime(settings) as runtime:
        machine = await runtime.start()
        screen = await machine.screenshot()
        assert (screen.width, screen.height) == (1024, 768)
        assert [window.application for window in await machine.windows()] == ["XTerm"]

        await machine.type("echo 'Hello, World!' > said; xcalc -geometry +700+400 &\n")
        await wrote(machine, "/home/agent/said", b"Hello, World!\n")
        await focused(machine, "XCalc")
        await click(machine, 200, 300)
        await focused(machine, "XTerm")

        before = (await machine.screenshot()).png
        await machine.move(900, 700)

        async def moved() -> bool:
            return (await machine.screenshot()).png != before

        await until(moved)
        fork = await machine.fork()
        await fork.type("echo fork > who\n")
        await machine.type("echo parent > who\n")
        await wrote(fork, "/home/agent/who", b"fork\n")
        await wrote(machine, "/home/agent/who", b"parent\n")
        assert await random_bytes(fork) != await random_bytes(machine)
