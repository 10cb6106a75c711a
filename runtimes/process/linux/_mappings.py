"""Mappings of a process that lead to files or to memory outside it: shared ones, and private ones of files."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

_QUERY_STRUCT = struct.Struct("=9Q2I2I2Q")
_PROCMAP_QUERY = 0xC0000000 | _QUERY_STRUCT.size << 16 | ord("f") << 8 | 17
_PROTECTIONS = {1: mmap.PROT_READ, 2: mmap.PROT_WRITE, 4: mmap.PROT_EXEC}
_SHARED = 8
_THIS_OR_NEXT = 16
_OF_FILE = 32
_MAX_PATH = 4096
# Allocated once: in an interpreter that forks, a new allocation would shift later addresses in its copy.
_PATH = ctypes.create_string_buffer(_MAX_PATH)
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (r|-)(w|-)(x|-)(s|p) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$",
    re.MULTILINE,
)
_PAGEMAP_ENTRY = 8
_PAGEMAP_PAGES = 1 << 16
# The highest byte of a page's entry: bit 7 or 6 is set if it is in memory or in swap, bit 5 if it still is the file's.
_OWN_PAGES = re.compile(b"[%s]+" % re.escape(bytes(b for b in range(256) if b & 0xC0 and not b & 0x20)))

Device = tuple[int, int]
"""Major and minor number of a file system."""


class Mapping(NamedTuple):
    """One mapping."""

    start: int
    """Start address."""
    length: int
    """Length in bytes."""
    protection: int
    """Protection flags of `mmap`."""
    offset: int
    """Offset in the file."""
    device: Device
    """Device of the file."""
    path: bytes
    """Path of the file, as the kernel reports it."""
    shared: bool = True
    """Writes reach the file, or the other processes that share the memory."""


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
    mappings: list[Mapping] = []
    start = 0
    while True:
        try:
            mapping = _describe(maps, _THIS_OR_NEXT | _SHARED, start)
        except FileNotFoundError:
            return mappings
        start = mapping.start + mapping.length
        mappings.append(mapping)


def _describe(maps: int, wanted: int, address: int) -> Mapping:
    fields = (_QUERY_STRUCT.size, wanted, address, *[0] * 8, _MAX_PATH, 0, ctypes.addressof(_PATH), 0)
    query = bytearray(_QUERY_STRUCT.pack(*fields))
    fcntl.ioctl(maps, _PROCMAP_QUERY, query, True)
    _, _, _, begin, end, flags, _, offset, _, major, minor, length, *_ = _QUERY_STRUCT.unpack(query)
    protection = sum(bit for flag, bit in _PROTECTIONS.items() if flags & flag)
    name = _PATH.value if length else b""
    return Mapping(begin, end - begin, protection, offset, (major, minor), name, bool(flags & _SHARED))


def parse_maps(text: bytes) -> list[Mapping]:
    """Parse the shared mappings in `/proc/<pid>/maps`."""
    return [mapping for mapping, _ in _parse(text) if mapping.shared]


def _parse(text: bytes) -> Iterator[tuple[Mapping, bool]]:
    """Yield each mapping, and whether it has a file."""
    for start, end, read, write, execute, kind, offset, major, minor, inode, path in _LINE.findall(text):
        rights = zip((read, write, execute), _PROTECTIONS.values(), strict=True)
        protection = sum(bit for letter, bit in rights if letter != b"-")
        begin, device, path = int(start, 16), (int(major, 16), int(minor, 16)), path.replace(rb"\012", b"\n")
        extent = begin, int(end, 16) - begin, protection, int(offset, 16)
        yield Mapping(*extent, device, path, kind == b"s"), inode != b"0"


class PrivateMappings:
    """Search for private mappings of files.

    An interpreter with its libraries has hundreds of them, in some seventy blocks without gaps. Later searches step over
    each block that was there at the time of `skip_present`, so they take about a tenth of a millisecond.
    """

    def __init__(self) -> None:
        self._query = bytearray(_QUERY_STRUCT.size)
        self._blocks: dict[int, int] = {}
        self._memory_device: Device = (0, 0)

    def skip_present(self) -> None:
        """Leave the present mappings of this process out of later searches."""
        block, blocks = -1, dict[int, int]()
        fd = os.memfd_create("device")
        self._memory_device = _device_of(os.fstat(fd))
        os.close(fd)
        with open("/proc/self/maps", "rb", buffering=0) as maps, contextlib.suppress(OSError):
            for start, end, *_ in self._files(maps.fileno()):
                block = block if blocks.get(block) == start else start
                blocks[block] = end
        self._blocks = blocks

    def of(self, folders: Collection[str]) -> list[Mapping]:
        """Return those of files on the file systems of these folders, and of memory files."""
        devices = {self._memory_device, *(_device_of(os.stat(folder)) for folder in folders)}
        with open("/proc/self/maps", "rb", buffering=0) as maps:
            try:
                starts = [
                    start
                    for start, _, flags, *device in self._files(maps.fileno())
                    if tuple(device) in devices and not flags & _SHARED
                ]
                return [_describe(maps.fileno(), 0, start) for start in starts]
            except OSError:
                mappings = _parse(maps.readall())
        return [
            mapping
            for mapping, has_file in mappings
            if has_file and not mapping.shared and mapping.device in devices
        ]

    def _files(self, maps: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield start, end, flags and device of each mapping of a file outside the known blocks."""
        query, blocks, request, result = (
            self._query,
            self._blocks,
            struct.Struct("=3Q"),
            struct.Struct("=3Q24x2I"),
        )
        _QUERY_STRUCT.pack_into(query, 0, *[0] * 15)
        end = 0
        while True:
            request.pack_into(query, 0, _QUERY_STRUCT.size, _THIS_OR_NEXT | _OF_FILE, end)
            try:
                fcntl.ioctl(maps, _PROCMAP_QUERY, query, True)
            except FileNotFoundError:
                return
            start, end, flags, major, minor = result.unpack_from(query, 24)
            if start in blocks:
                end = max(end, blocks[start])
            else:
                yield start, end, flags, major, minor


def _device_of(info: os.stat_result) -> Device:
    return os.major(info.st_dev), os.minor(info.st_dev)


def own_pages(mapping: Mapping) -> Iterator[tuple[int, int]]:
    """Yield start and length of each part of a private mapping of this process that it has written to."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        first, last = mapping.start // mmap.PAGESIZE, (mapping.start + mapping.length) // mmap.PAGESIZE
        for page in range(first, last, _PAGEMAP_PAGES):
            count = min(_PAGEMAP_PAGES, last - page)
            entries = os.pread(pages.fileno(), count * _PAGEMAP_ENTRY, page * _PAGEMAP_ENTRY)
            for run in _OWN_PAGES.finditer(entries[_PAGEMAP_ENTRY - 1 :: _PAGEMAP_ENTRY]):
                yield (page + run.start()) * mmap.PAGESIZE, (run.end() - run.start()) * mmap.PAGESIZE
