"""Shared memory mappings of a process."""

import ctypes
import fcntl
import mmap
import re
import struct
from typing import NamedTuple

_QUERY_STRUCT = struct.Struct("=9Q2I2I2Q")
_PROCMAP_QUERY = 0xC0000000 | _QUERY_STRUCT.size << 16 | ord("f") << 8 | 17
_READABLE, _WRITABLE, _EXECUTABLE, _SHARED = 1, 2, 4, 8
_THIS_OR_NEXT = 16
_LONGEST_PATH = 4096
# Allocated once: in an interpreter that forks, a new allocation would shift later addresses in its copy.
_PATH = ctypes.create_string_buffer(_LONGEST_PATH)
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (r|-)(w|-)(x|-)s ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) \d+ *(.*)$", re.MULTILINE
)


class Mapping(NamedTuple):
    """One shared mapping."""

    start: int
    """Start address."""
    length: int
    """Length in bytes."""
    protection: int
    """Protection flags of `mmap`."""
    offset: int
    """Offset in the file."""
    device: tuple[int, int]
    """Device of the file."""
    path: bytes
    """Path of the file, as the kernel reports it."""


def shared_mappings(process: int | str) -> list[Mapping]:
    """Return the shared mappings of a process, or of `self`.

    :raises OSError: if the process is gone.
    """
    with open(f"/proc/{process}/maps", "rb", buffering=0) as maps:
        try:
            return _query(maps.fileno())
        except OSError:
            # Kernels before 6.11 list only all mappings, of which a warm interpreter has hundreds.
            return parse_maps(maps.readall())


def _query(maps: int) -> list[Mapping]:
    found: list[Mapping] = []
    wanted, start = _THIS_OR_NEXT | _SHARED, 0
    while True:
        query = bytearray(
            _QUERY_STRUCT.pack(
                _QUERY_STRUCT.size,
                wanted,
                start,
                *[0] * 6,
                0,
                0,
                _LONGEST_PATH,
                0,
                ctypes.addressof(_PATH),
                0,
            )
        )
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query, True)
        except FileNotFoundError:
            return found
        _, _, _, begin, start, flags, _, offset, _, major, minor, length, *_ = _QUERY_STRUCT.unpack(query)
        protection = sum(
            bit
            for flag, bit in (
                (_READABLE, mmap.PROT_READ),
                (_WRITABLE, mmap.PROT_WRITE),
                (_EXECUTABLE, mmap.PROT_EXEC),
            )
            if flags & flag
        )
        name = _PATH.value if length else b""
        found.append(Mapping(begin, start - begin, protection, offset, (major, minor), name))


def parse_maps(text: bytes) -> list[Mapping]:
    """Parse the shared mappings in `/proc/<pid>/maps`."""
    found: list[Mapping] = []
    for start, end, read, write, execute, offset, major, minor, path in _LINE.findall(text):
        protection = sum(
            bit
            for letter, bit in ((read, mmap.PROT_READ), (write, mmap.PROT_WRITE), (execute, mmap.PROT_EXEC))
            if letter != b"-"
        )
        begin = int(start, 16)
        device = int(major, 16), int(minor, 16)
        found.append(
            Mapping(begin, int(end, 16) - begin, protection, int(offset, 16), device, _unescaped(path))
        )
    return found


def _unescaped(path: bytes) -> bytes:
    return path.replace(rb"\012", b"\n")
