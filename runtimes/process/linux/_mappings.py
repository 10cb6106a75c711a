"""Shared memory mappings of a process."""

import ctypes
import fcntl
import mmap
import re
import struct
from typing import NamedTuple

_QUERY_STRUCT = struct.Struct("=9Q2I2I2Q")
_PROCMAP_QUERY = 0xC0000000 | _QUERY_STRUCT.size << 16 | ord("f") << 8 | 17
_PROTECTIONS = {1: mmap.PROT_READ, 2: mmap.PROT_WRITE, 4: mmap.PROT_EXEC}
_SHARED = 8
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
        fields = (_QUERY_STRUCT.size, wanted, start, *[0] * 8, _LONGEST_PATH, 0, ctypes.addressof(_PATH), 0)
        query = bytearray(_QUERY_STRUCT.pack(*fields))
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query, True)
        except FileNotFoundError:
            return found
        _, _, _, begin, start, flags, _, offset, _, major, minor, length, *_ = _QUERY_STRUCT.unpack(query)
        protection = sum(bit for flag, bit in _PROTECTIONS.items() if flags & flag)
        name = _PATH.value if length else b""
        found.append(Mapping(begin, start - begin, protection, offset, (major, minor), name))


def parse_maps(text: bytes) -> list[Mapping]:
    """Parse the shared mappings in `/proc/<pid>/maps`."""
    found: list[Mapping] = []
    for start, end, read, write, execute, offset, major, minor, path in _LINE.findall(text):
        rights = zip((read, write, execute), _PROTECTIONS.values(), strict=True)
        protection = sum(bit for letter, bit in rights if letter != b"-")
        begin, device, path = int(start, 16), (int(major, 16), int(minor, 16)), path.replace(rb"\012", b"\n")
        found.append(Mapping(begin, int(end, 16) - begin, protection, int(offset, 16), device, path))
    return found
