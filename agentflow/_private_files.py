"""Files and directories that only this user can read, whatever the umask is."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal


def open_private(path: Path, mode: Literal["ab", "a+b", "wb"]) -> BinaryIO:
    """Open a file; a new one can be read by this user only.

    Example::

        with open_private(Path("results.jsonl"), "ab") as file:
            file.write(b"{}")
    """
    return open(path, mode, opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read."""
    with open_private(path, "wb") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step: it is the old one or the whole new one, which only this user can read."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def make_private_folder(path: Path) -> None:
    """Create a directory that only this user can read, and missing ones above it; existing ones are not changed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_private(paths: Iterable[Path]) -> None:
    """Take the rights of other users from files and directories that a library has written."""
    for path in paths:
        path.chmod(0o700 if path.is_dir() else 0o600)
