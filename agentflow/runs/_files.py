"""Files of a run, each written whole or not at all."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Self

__all__ = ["NewFiles"]


class NewFiles:
    """New versions of all files, beside the old ones until they are whole."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Describe them."""
        self._folder = folder
        self._names = names
        self._open: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> None:
        """Begin."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(self._folder, self._names)
        for name in self._names:
            path = self._new(name)
            self._stack.callback(path.unlink, missing_ok=True)
            self._open[name] = self._stack.enter_context(path.open("wb"))

    def write(self, lines: dict[str, list[bytes]]) -> None:
        """Add lines to files."""
        for name, added in lines.items():
            self._open[name].writelines(line + b"\n" for line in added)

    def finish(self) -> None:
        """Put the new versions in the place of the old ones."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        for name in self._open:
            self._new(name).replace(self._folder / name)
        _sync_folder(self._folder)

    def _new(self, name: str) -> Path:
        return self._folder / f".{name}.{os.getpid()}.new"


def _remove_orphans(folder: Path, names: Sequence[str]) -> None:
    """Remove what processes left that were killed while they wrote."""
    for path in _unfinished(folder, names):
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or not _lives(int(pid)):
            path.unlink(missing_ok=True)


def _unfinished(folder: Path, names: Sequence[str]) -> Iterable[Path]:
    return [path for name in names for path in folder.glob(f".{name}.*.new")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _sync_folder(folder: Path) -> None:
    # Some file systems can't sync a folder; there the renames are as durable as they can be.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
