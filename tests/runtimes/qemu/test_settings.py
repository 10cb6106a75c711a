"""Settings, and errors for missing requirements."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from agentflow.errors import ConfigurationError, IsolationUnavailable, RuntimeFailure
from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings

if TYPE_CHECKING:
    from runtimes import Machine, MachineRuntime


@pytest.mark.promise("qemu:settings")
def test_the_documented_names_of_settings_are_accepted(tiny: Path) -> None:
    settings = QemuSettings.model_validate(
        {
            "vm_path": str(tiny),
            "screen_size": [1280, 800],
            "pool_size": 2,
            "snapshot_name": "init_state",
            "os_type": "Ubuntu",
            "headless": True,
        }
    )
    assert (settings.image, settings.display, settings.pool) == (tiny, (1280, 800), 2)
    with pytest.raises(ValidationError, match="headless"):
        QemuSettings.model_validate({"vm_path": str(tiny), "headless": False})


@pytest.mark.promise("qemu:image")
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"colour": 1}', "colour"),
        ("{}", "name a kernel or a disk"),
        ('{"kernel": "nowhere"}', "nowhere: No such file"),
    ],
)
def test_an_image_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "image.json").write_text(content)
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        QemuRuntime(QemuSettings(image=tmp_path))
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("qemu:image")
def test_a_missing_image_error_names_the_build_command(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.qcow2"):
        with pytest.raises(ConfigurationError, match="build one with scripts/make-guest"):
            QemuRuntime(QemuSettings(image=path))


@pytest.mark.promise("qemu:image")
async def test_an_image_that_does_not_boot_is_an_error_that_leaves_nothing(
    settings: QemuSettings, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "image"
    shutil.copytree(tiny, folder)
    (folder / "kernel").write_bytes(b"no kernel")
    broken = settings.model_copy(
        update={"image": folder, "state_dir": tmp_path / "states", "boot_seconds": 2.0}
    )
    async with QemuRuntime(broken) as runtime:
        with pytest.raises(RuntimeFailure) as refused:
            await runtime.start()
    assert "\n" not in str(refused.value)
    assert [path.suffix for path in (tmp_path / "states").iterdir()] == [".lock"]


@pytest.mark.promise("qemu:missing")
async def test_a_missing_program_is_named_with_its_package(
    settings: QemuSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(IsolationUnavailable, match="qemu-system-x86_64 is missing: install qemu-system-x86"):
        async with QemuRuntime(settings):
            pass


@pytest.mark.promise("qemu:once")
async def test_an_image_is_booted_once_and_every_machine_starts_where_that_ended(
    settings: QemuSettings, machine: QemuMachine
) -> None:
    def saved() -> list[tuple[str, int]]:
        assert settings.state_dir is not None
        return sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(settings.state_dir))

    before = saved()
    assert len([name for name, _ in before if not name.endswith(".lock")]) == 1
    async with QemuRuntime(settings) as another:
        other = await another.start()
        assert other.id != machine.id
        assert (await other.screenshot()).png == (await machine.screenshot()).png
    assert saved() == before


@pytest.mark.promise("qemu:pool")
async def test_machines_of_the_pool_are_ready_before_they_are_requested(settings: QemuSettings) -> None:
    async with QemuRuntime(settings.model_copy(update={"pool": 1, "machines": 2})) as runtime:
        await runtime.warmup()
        as_promised: MachineRuntime = runtime
        machine: Machine = await as_promised.start()
        assert (await machine.exec(["echo", "ready"])).stdout == b"ready\n"
        assert (await (await runtime.start()).screenshot()).width == 720


@pytest.mark.promise("qemu:accelerator")
async def test_the_accelerator_is_chosen_by_a_test_boot(settings: QemuSettings) -> None:
    async with QemuRuntime(settings) as runtime:
        await runtime.warmup()
        notes = " ".join(runtime.capabilities.notes)
    insisting = settings.model_copy(update={"accelerator": "kvm"})
    async with QemuRuntime(insisting) as runtime:
        if "TCG" in notes:
            with pytest.raises(
                IsolationUnavailable, match=r"KVM cannot be used: .*set accelerator to auto or tcg"
            ):
                await runtime.start()
        else:
            assert (await (await runtime.start()).exec(["true"])).exit_code == 0
