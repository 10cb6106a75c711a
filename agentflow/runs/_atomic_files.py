"""Output files that are replaced together, each complete or not at all."""

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from agentflow.errors import RunStopped, StopCause


class AtomicFiles:
    """New versions of a set of files, written beside the old ones until all are complete."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names
        self._open: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> None:
        """Create the new versions, and remove those that killed processes left behind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(self._folder, self._names)
        for name in self._names:
            path = self._new(name)
            self._stack.callback(path.unlink, missing_ok=True)
            self._open[name] = self._stack.enter_context(path.open("wb"))

    def write(self, lines: dict[str, list[bytes]]) -> None:
        """Append lines to files, by file name."""
        for name, added in lines.items():
            self._open[name].writelines(line + b"\n" for line in added)

    def finish(self) -> None:
        """Sync the new versions and rename them over the old ones."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        for name in self._open:
            self._new(name).replace(self._folder / name)
        _sync_folder(self._folder)

    def _new(self, name: str) -> Path:
        return self._folder / f".{name}.{os.getpid()}.new"


@contextmanager
def report_disk_errors(folder: Path) -> Generator[None]:
    """Raise `RunStopped` with the file and the reason for an `OSError` in the block."""
    try:
        yield
    except OSError as error:
        raise RunStopped(
            StopCause.JOURNAL,
            f"{error.filename or folder}: can't be written: {error.strerror}; fix it and run the same command again",
        ) from error


def _remove_orphans(folder: Path, names: Sequence[str]) -> None:
    for path in _unfinished(folder, names):
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _unfinished(folder: Path, names: Sequence[str]) -> Iterable[Path]:
    return [path for name in names for path in folder.glob(f".{name}.*.new")]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _sync_folder(folder: Path) -> None:
    # Some file systems can't sync a directory; there the renames are only as durable as the system makes them.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
