"""Boot images: a directory with a description, or a disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.settings import Section

DESCRIPTION = "image.json"
_QCOW2 = b"QFI\xfb"


class ImageDescription(Section):
    """Content of `image.json`, as `scripts/make-guest` writes it."""

    kernel: str | None = None
    """File of the kernel; without one the disk's boot loader runs."""
    initrd: str | None = None
    """File of the initial file system."""
    append: str = ""
    """Kernel command line."""
    disk: str | None = None
    """File of the disk."""
    door: bool = False
    """The guest serves a root shell at the port `door`, for evaluators."""
    windows: tuple[str, ...] = ()
    """Command inside that lists the windows."""


@dataclass(frozen=True, slots=True)
class BootImage:
    """Boot image; it is never written to."""

    kernel: Path | None
    """Kernel."""
    initrd: Path | None
    """Initial file system."""
    append: str
    """Kernel command line."""
    disk: Path | None
    """Disk."""
    door: bool
    """The guest serves a root shell for evaluators."""
    windows: tuple[str, ...]
    """Command inside that lists the windows."""

    @property
    def disk_format(self) -> str:
        """Format of the disk's file."""
        assert self.disk is not None
        with self.disk.open("rb") as file:
            return "qcow2" if file.read(4) == _QCOW2 else "raw"

    @property
    def files(self) -> list[Path]:
        """All files of the image."""
        return [path for path in (self.kernel, self.initrd, self.disk) if path is not None]


def load_image(path: Path) -> BootImage:
    """Load the image at a path.

    :raises ConfigurationError: if it is missing or invalid.
    """
    try:
        if path.is_dir():
            image = _described(path.resolve())
        else:
            image = BootImage(None, None, "", path.resolve(), door=False, windows=())
        for file in image.files:
            file.open("rb").close()
            if os.geteuid() == 0 and not file.stat().st_mode & 0o004:
                raise ConfigurationError(f"image {file}: QEMU runs as another user: chmod a+r {file}")
    except OSError as error:
        raise ConfigurationError(
            f"image {error.filename or path}: {error.strerror}; build one with scripts/make-guest, or name a disk"
        ) from None
    return image


def _described(folder: Path) -> BootImage:
    try:
        text = (folder / DESCRIPTION).read_text(encoding="utf-8")
        said = ImageDescription.model_validate_json(text)
    except (ValidationError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
        raise ConfigurationError(f"image {folder / DESCRIPTION}: {reason}") from None
    if said.kernel is None and said.disk is None:
        raise ConfigurationError(f"image {folder / DESCRIPTION}: name a kernel or a disk")
    paths = [None if name is None else folder / name for name in (said.kernel, said.initrd, said.disk)]
    kernel, initrd, disk = paths
    return BootImage(kernel, initrd, said.append, disk, door=said.door, windows=said.windows)
