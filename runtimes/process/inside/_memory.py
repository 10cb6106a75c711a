"""Mapped memory of a fork: every mapping that leads to the parent's files or memory is replaced by one that does not.

A shared mapping shows each write of the others. A private mapping shows the file's later changes, too, in each page
that the interpreter has not written to itself.
"""

import ctypes
import errno
import mmap
import os
import stat

from runtimes.process.linux import _mappings

_MAP_FIXED = 0x10
_COPIED_BYTES = 1 << 20
_WRITABLE = ("/", "/dev/shm")
"""A folder on each file system to which a sandbox can write."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_private = _mappings.PrivateMappings()


def skip_present_mappings() -> None:
    """Leave the mappings of the warm interpreter, which are of system files, out of the search at each fork."""
    _private.skip_present()


def mappings_to_replace() -> list[_mappings.Mapping]:
    """Return the mappings through which a fork would see its parent. Called before the move."""
    return [*_mappings.shared_mappings("self"), *_private.of(_WRITABLE)]


def replace(mapping: _mappings.Mapping) -> str:
    """Replace a mapping by one of the new sandbox's file, or of a copy; return a line that describes it if it is lost.

    :raises OSError: if the kernel refuses.
    """
    if not mapping.shared:
        _replace_private(mapping)
        return ""
    fd = _open_file(mapping)
    if fd < 0:
        if not mapping.protection & mmap.PROT_READ:
            _libc.munmap(mapping.start, mapping.length)
            return f"shared memory at {mapping.start:#x}"
        fd = _copy_content(mapping)
        mapping = mapping._replace(offset=0, protection=mmap.PROT_READ | mmap.PROT_WRITE)
    _map(mapping, fd, mapping.protection)
    os.close(fd)
    return ""


def _replace_private(mapping: _mappings.Mapping) -> None:
    fd = _open_file(mapping)
    if fd < 0:
        _protect(mapping, mmap.PROT_READ)
        fd = _copy_content(mapping)
        _map(mapping._replace(offset=0), fd, mapping.protection)
    elif written := [(start, ctypes.string_at(start, size)) for start, size in _readable_own_pages(mapping)]:
        _map(mapping, fd, mmap.PROT_READ | mmap.PROT_WRITE)
        for start, content in written:
            ctypes.memmove(start, content, len(content))
        _protect(mapping, mapping.protection)
    else:
        _map(mapping, fd, mapping.protection)
    os.close(fd)


def _readable_own_pages(mapping: _mappings.Mapping) -> list[tuple[int, int]]:
    parts = list(_mappings.own_pages(mapping))
    if parts and not mapping.protection & mmap.PROT_READ:
        _protect(mapping, mmap.PROT_READ)
    return parts


def _open_file(mapping: _mappings.Mapping) -> int:
    """Open the new sandbox's file of a mapping; return -1 if there is none."""
    path = mapping.path
    if not path.startswith(b"/") or path.endswith(b" (deleted)"):
        return -1
    writes = mapping.shared and mapping.protection & mmap.PROT_WRITE
    try:
        fd = os.open(
            path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        )
    except OSError:
        return -1
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return -1


def _copy_content(mapping: _mappings.Mapping) -> int:
    """Copy the content of a mapping into an unnamed file of the new sandbox, and return its descriptor.

    The broker can check that such memory is not shared with another sandbox. Empty parts take no memory.
    """
    room = os.statvfs("/dev/shm")
    if mapping.length > room.f_blocks * room.f_frsize:
        raise OSError(
            errno.EFBIG, f"{mapping.length} bytes of mapped memory without a file are over the disk limit"
        )
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    os.truncate(fd, mapping.length)
    position = 0
    while position < mapping.length:
        size = min(_COPIED_BYTES, mapping.length - position)
        try:
            piece = os.pread(memory, size, mapping.start + position)
        except OSError:
            # This page lies behind the end of the file.
            piece = bytes(mmap.PAGESIZE)
        if piece.strip(b"\0") and os.pwrite(fd, piece, position) < len(piece):
            raise OSError(errno.ENOSPC, "copying mapped memory: " + os.strerror(errno.ENOSPC))
        position += len(piece)
    os.close(memory)
    return fd


def _map(mapping: _mappings.Mapping, fd: int, protection: int) -> None:
    """Map a file in place of a mapping."""
    flags = (mmap.MAP_SHARED if mapping.shared else mmap.MAP_PRIVATE) | _MAP_FIXED
    address = _libc.mmap(mapping.start, mapping.length, protection, flags, fd, mapping.offset)
    if address != mapping.start:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {os.fsdecode(mapping.path)} anew: {os.strerror(number)}")


def _protect(mapping: _mappings.Mapping, protection: int) -> None:
    if _libc.mprotect(mapping.start, mapping.length, protection):
        number = ctypes.get_errno()
        raise OSError(number, f"protecting {os.fsdecode(mapping.path)}: {os.strerror(number)}")
