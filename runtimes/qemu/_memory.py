"""Guest memory in files: a sealed, shared starting point for any number of machines, and the changes of one to it."""

import fcntl
import mmap
import os
from pathlib import Path
from typing import BinaryIO, Final

from agentflow.errors import RuntimeFailure

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


_PAGE: Final = 4096
_BUFFER: Final = 1 << 20
_STREAM_START: Final = b"QEVM\0\0\0\3"
_CONFIGURATION, _SECTION_START, _SECTION_PART, _SECTION_END, _FOOTER = b"\7", b"\1", b"\2", b"\3", b"\x7e"
_EARLY: Final = "the state of the machine ends early"
_UNKNOWN: Final = "this version of QEMU writes its states in an unknown format"
_ZERO, _SIZES, _FULL, _END, _SAME_BLOCK = 0x02, 0x04, 0x08, 0x10, 0x20


def map_memory(fd: int) -> mmap.mmap:
    """Map a memory file to read it."""
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_PRIVATE, mmap.PROT_READ)


def write_changes(reader: int, writer: int, base: mmap.mmap) -> None:
    """Copy a saved state without the pages that are equal in `base`, which the loading machine has mapped; close all three.

    The state is QEMU's migration stream: a header, the section `ram` in parts, then the devices, which are copied as they are.

    :raises RuntimeFailure: if this QEMU writes another format.
    """
    with (
        open(reader, "rb", buffering=_BUFFER) as source,
        open(writer, "wb", buffering=_BUFFER) as target,
        base,
    ):
        _Stream(source, target, base).copy()


class _Stream:
    """Migration stream that is copied from one file to another."""

    def __init__(self, source: BinaryIO, target: BinaryIO, base: mmap.mmap) -> None:
        self._source = source
        self._target = target
        self._base = base
        self._blocks: dict[bytes, int] = {}
        self._block = self._written_block = b""

    def copy(self) -> None:
        """Copy the whole stream."""
        self._expect(_STREAM_START + _CONFIGURATION)
        self._keep(self._number(4))
        self._expect(_SECTION_START)
        self._keep(4)
        self._expect(b"\3ram")
        self._keep(8)
        self._copy_sizes()
        self._expect(_END.to_bytes(8, "big"))
        while True:
            self._expect(_FOOTER)
            self._keep(4)
            kind = self._keep(1)
            if kind not in (_SECTION_PART, _SECTION_END):
                break
            self._keep(4)
            self._copy_pages()
            if kind == _SECTION_END:
                break
        while rest := self._source.read(_PIECE):
            self._target.write(rest)

    def _copy_sizes(self) -> None:
        total = self._number(8)
        if total & _SIZES == 0:
            raise RuntimeFailure(_UNKNOWN)
        left = total & -_PAGE
        while left > 0:
            name = self._keep(self._number(1))
            self._blocks[name] = self._number(8)
            left -= self._blocks[name]

    def _copy_pages(self) -> None:
        read, write, base, zeros = self._source.read, self._target.write, self._base, bytes(_PAGE)
        while True:
            head = int.from_bytes(read(8), "big")
            flags, address = head & _PAGE - 1, head & -_PAGE
            if flags == _END:
                write(_END.to_bytes(8, "big"))
                return
            if not flags:
                raise RuntimeFailure(_EARLY)
            if not flags & _SAME_BLOCK:
                self._block = read(int.from_bytes(read(1), "big"))
            if flags & _FULL:
                kind, content = _FULL, read(_PAGE)
                page = content
            elif flags & _ZERO:
                kind, content, page = _ZERO, read(1), zeros
            else:
                raise RuntimeFailure(_UNKNOWN)
            if self._blocks.get(self._block) == len(base) and base[address : address + _PAGE] == page:
                continue
            if self._block == self._written_block:
                write((address | kind | _SAME_BLOCK).to_bytes(8, "big") + content)
            else:
                write((address | kind).to_bytes(8, "big") + bytes([len(self._block)]) + self._block + content)
                self._written_block = self._block

    def _keep(self, count: int) -> bytes:
        kept = self._source.read(count)
        if len(kept) < count:
            raise RuntimeFailure(_EARLY)
        self._target.write(kept)
        return kept

    def _number(self, count: int) -> int:
        return int.from_bytes(self._keep(count), "big")

    def _expect(self, expected: bytes) -> None:
        if self._keep(len(expected)) != expected:
            raise RuntimeFailure(_UNKNOWN)
