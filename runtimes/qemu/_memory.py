"""Memory of guests as files in memory: one that nobody can change any more, that any number of machines begin with."""

import fcntl
import os
from pathlib import Path

_PIECE = 1 << 16
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def new_memory(size: int) -> int:
    """An empty one, to be written by the machine that boots."""
    fd = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def keep_memory(fd: int, path: Path) -> None:
    """Copy it to a file, without what is nothing but zeros."""
    nothing = bytes(_PIECE)
    with path.open("wb") as file:
        size = os.fstat(fd).st_size
        for start in range(0, size, _PIECE):
            piece = os.pread(fd, _PIECE, start)
            if piece != nothing:
                file.seek(start)
                file.write(piece)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())


def load_memory(path: Path) -> int:
    """The kept one again. Each machine has its own changes to it; nobody can write to it itself.

    :raises OSError: if it can't be read whole.
    """
    with path.open("rb", buffering=0) as file:
        source = file.fileno()
        size = os.fstat(source).st_size
        fd = new_memory(size)
        try:
            for start, end in _filled(source, size):
                while start < end:
                    os.lseek(fd, start, os.SEEK_SET)
                    copied = os.sendfile(fd, source, start, end - start)
                    if not copied:
                        raise OSError(5, "it is shorter than it was", str(path))
                    start += copied
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
    return fd


def _filled(fd: int, size: int) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    start = 0
    while start < size:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:
            # Nothing but a hole is left.
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        parts.append((start, end))
        start = end
    return parts
