"""Boot images: a directory with a description, or a disk."""

import os
from pathlib import Path

from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.settings import Section

DESCRIPTION = "image.json"
_QCOW2 = b"QFI\xfb"


class BootImage(Section):
    """Boot image; it is never written to. `scripts/make-guest` writes it as `image.json`, with names of files there."""

    kernel: Path | None = None
    """Kernel; without one the disk's boot loader runs."""
    initrd: Path | None = None
    """Initial file system."""
    append: str = ""
    """Kernel command line."""
    disk: Path | None = None
    """Disk."""
    door: bool = False
    """The guest serves a root shell at the port `door`, for evaluators."""
    windows: tuple[str, ...] = ()
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
        image = _described(path.resolve()) if path.is_dir() else BootImage(disk=path.resolve())
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
        image = BootImage.model_validate_json((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
        raise ConfigurationError(f"image {folder / DESCRIPTION}: {reason}") from None
    if image.kernel is None and image.disk is None:
        raise ConfigurationError(f"image {folder / DESCRIPTION}: name a kernel or a disk")
    paths = {"kernel": image.kernel, "initrd": image.initrd, "disk": image.disk}
    return image.model_copy(update={name: folder / path for name, path in paths.items() if path is not None})
