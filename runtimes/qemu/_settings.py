"""Settings of the qemu runtime."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from agentflow.settings import Section

__all__ = ["Accelerator", "QemuSettings"]

Accelerator = Literal["kvm", "tcg"]
"""Who computes for the guest: the processor itself, or QEMU in its place, some ten times slower."""

Pixels = Annotated[int, Field(ge=64, le=8192)]


class QemuSettings(Section):
    """Settings of the qemu runtime: which machine, how large, how many."""

    image: Path = Field(validation_alias=AliasChoices("image", "vm_path"))
    """A folder that `scripts/make-guest` made, or a disk that boots (qcow2 or raw). Also called `vm_path`."""
    memory_mib: int = Field(default=512, ge=32, le=1 << 20)
    """Memory of the guest."""
    cpus: int = Field(default=1, ge=1, le=64)
    """Processors of the guest."""
    display: tuple[Pixels, Pixels] = Field(
        default=(1024, 768), validation_alias=AliasChoices("display", "screen_size")
    )
    """Width and height of the screen that the guest is offered; the guest decides. Also called `screen_size`."""
    pointer: Literal["virtio", "usb"] = "virtio"
    """The pointing device: `virtio` for Linux, `usb` for guests that have no driver for it."""
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """`auto` takes KVM if a guest boots with it in three seconds, and TCG otherwise."""
    pool: int = Field(default=0, ge=0, le=64, validation_alias=AliasChoices("pool", "pool_size"))
    """How many restored machines wait for who needs one next. Also called `pool_size`."""
    machines: int = Field(default=8, ge=1, le=1024)
    """How many machines there may be at once, those of the pool and forks counted in."""
    disk_mib: int = Field(default=4096, ge=16)
    """How much a machine may write to its disk."""
    snapshot_name: str = Field(default="ready", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name of the saved state that sessions begin with. Another name, another boot."""
    state_dir: Path | None = None
    """Where saved states are kept; by default in the user's cache."""
    boot_seconds: float = Field(default=180.0, gt=0)
    """How long the one boot of an image may take."""
    still_seconds: float = Field(default=5.0, gt=0)
    """A guest without a door has booted when its screen shows something and was still for so long."""
    os_type: str = "Linux"
    """What the guest runs, for who reads the settings; nothing depends on it."""
    headless: Literal[True] = True
    """No window is ever opened for the screen of a machine."""
