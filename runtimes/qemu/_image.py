"""What a machine boots from: a folder with a description, or a disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.settings import Section

DESCRIPTION = "image.json"
_QCOW2 = b"QFI\xfb"


class Description(Section):
    """`image.json`, as `scripts/make-guest` writes it."""

    kernel: str | None = None
    """File of the kernel; without one the disk's boot loader decides."""
    initrd: str | None = None
    """File of the first file system."""
    append: str = ""
    """The kernel's command line."""
    disk: str | None = None
    """File of the disk."""
    door: bool = False
    """It listens at the port `door` for whoever judges."""
    windows: tuple[str, ...] = ()
    """The command inside that lists the windows."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a machine boots from; it is only ever read."""

    kernel: Path | None
    """The kernel."""
    initrd: Path | None
    """The first file system."""
    append: str
    """The kernel's command line."""
    disk: Path | None
    """The disk."""
    door: bool
    """There is a way in for whoever judges."""
    windows: tuple[str, ...]
    """The command inside that lists the windows."""

    @property
    def disk_format(self) -> str:
        """How the disk lies in its file."""
        assert self.disk is not None
        with self.disk.open("rb") as file:
            return "qcow2" if file.read(4) == _QCOW2 else "raw"

    @property
    def files(self) -> list[Path]:
        """All of it."""
        return [path for path in (self.kernel, self.initrd, self.disk) if path is not None]


def load_image(path: Path) -> Image:
    """The image at a path.

    :raises ConfigurationError: if there is none.
    """
    try:
        if path.is_dir():
            image = _described(path.resolve())
        else:
            image = Image(None, None, "", path.resolve(), door=False, windows=())
        for file in image.files:
            file.open("rb").close()
            if os.geteuid() == 0 and not file.stat().st_mode & 0o004:
                raise ConfigurationError(f"image {file}: QEMU runs as a user of its own: chmod a+r {file}")
    except OSError as error:
        raise ConfigurationError(
            f"image {error.filename or path}: {error.strerror}; build one with scripts/make-guest, or name a disk"
        ) from None
    return image


def _described(folder: Path) -> Image:
    try:
        text = (folder / DESCRIPTION).read_text(encoding="utf-8")
        said = Description.model_validate_json(text)
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
    return Image(kernel, initrd, said.append, disk, door=said.door, windows=said.windows)
