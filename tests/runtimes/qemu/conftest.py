"""The tiny guest, one saved state of it for the whole suite, and runtimes that restore it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests.runtimes.qemu._guests import guest


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The tiny guest: a shell on a text console, and a door."""
    return guest("tiny")


@pytest.fixture(scope="session")
def settings(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> QemuSettings:
    """A small machine with the tiny guest."""
    return QemuSettings(image=tiny, memory_mib=96, state_dir=tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
async def runtime(settings: QemuSettings) -> AsyncGenerator[QemuRuntime]:
    """A runtime of one module's tests."""
    async with QemuRuntime(settings) as runtime:
        yield runtime


@pytest.fixture
async def machine(runtime: QemuRuntime) -> AsyncGenerator[QemuMachine]:
    """A machine of this test's own."""
    machine = await runtime.start()
    yield machine
    await machine.stop()
