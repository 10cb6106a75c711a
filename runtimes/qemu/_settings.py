"""Settings of the qemu runtime."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from agentflow.settings import Section

Accelerator = Literal["kvm", "tcg"]
"""Accelerator: hardware virtualization, or emulation, which is about ten times slower."""

Pixels = Annotated[int, Field(ge=64, le=8192)]


class QemuSettings(Section):
    """Settings of the qemu runtime: image, hardware, number of machines."""

    image: Path = Field(validation_alias=AliasChoices("image", "vm_path"))
    """Directory made by `scripts/make-guest`, or a bootable disk (qcow2 or raw). Alias: `vm_path`."""
    memory_mib: int = Field(default=512, ge=32, le=1 << 20)
    """Memory of the guest in MiB."""
    cpus: int = Field(default=1, ge=1, le=64)
    """Number of CPUs of the guest."""
    display: tuple[Pixels, Pixels] = Field(
        default=(1024, 768), validation_alias=AliasChoices("display", "screen_size")
    )
    """Width and height of the screen offered to the guest, which may choose another size. Alias: `screen_size`."""
    pointer: Literal["virtio", "usb"] = "virtio"
    """Pointing device: `virtio` for Linux, `usb` for guests without a driver for it."""
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """`auto` uses KVM if a guest boots with it within three seconds, and TCG otherwise."""
    pool: int = Field(default=0, ge=0, le=64, validation_alias=AliasChoices("pool", "pool_size"))
    """Number of restored machines kept ready. Alias: `pool_size`."""
    machines: int = Field(default=8, ge=1, le=1024)
    """Maximum number of machines, including the pool and forks."""
    disk_mib: int = Field(default=4096, ge=16)
    """Maximum size of a machine's changes to its disk, in MiB."""
    snapshot_name: str = Field(default="ready", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of the saved state that sessions start from. A new name causes a new boot."""
    state_dir: Path | None = None
    """Directory of saved states; the default is in the user's cache."""
    boot_seconds: float = Field(default=180.0, gt=0)
    """Time limit for the boot of an image, in seconds."""
    still_seconds: float = Field(default=5.0, gt=0)
    """A guest without a control shell counts as booted when its screen is not blank and unchanged for this many seconds."""
    os_type: str = "Linux"
    """Operating system of the guest. Informational only."""
    headless: Literal[True] = True
    """Machines never open a window."""
