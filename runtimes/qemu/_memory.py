"""Guest memory in files: a sealed, shared starting point for any number of machines."""

import fcntl
import os
from pathlib import Path

_PIECE = 1 << 16
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def create_memory(size: int) -> int:
    """Create an empty memory file for the machine that boots."""
    fd = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def save_memory(fd: int, path: Path) -> None:
    """Copy it to a file on disk, without pages of zeros."""
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
    """Load a saved memory file, sealed against writing. Each machine has private changes to it.

    :raises OSError: if it cannot be read completely.
    """
    with path.open("rb", buffering=0) as file:
        source = file.fileno()
        size = os.fstat(source).st_size
        fd = create_memory(size)
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
            # Only a hole is left.
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        parts.append((start, end))
        start = end
    return parts
