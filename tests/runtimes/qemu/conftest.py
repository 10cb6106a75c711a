"""Tiny guest with one saved state for the whole suite, and runtimes that restore it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests.runtimes.qemu._guests import guest


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Tiny guest: a shell on a text console, and a control shell."""
    return guest("tiny")


@pytest.fixture(scope="session")
def settings(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> QemuSettings:
    """Small machine with the tiny guest."""
    return QemuSettings(image=tiny, memory_mib=96, state_dir=tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
async def runtime(settings: QemuSettings) -> AsyncGenerator[QemuRuntime]:
    """Runtime of one module's tests."""
    async with QemuRuntime(settings) as runtime:
        yield runtime


@pytest.fixture
async def machine(runtime: QemuRuntime) -> AsyncGenerator[QemuMachine]:
    """Machine of one test."""
    machine = await runtime.start()
    yield machine
    await machine.stop()
