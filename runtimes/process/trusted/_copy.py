"""Copy the files of a sandbox, relative to directory descriptors.

The writable layer of a sandbox is a tree on a tmpfs, with overlay whiteouts, links and extended attributes. Paths
are never resolved through symlinks here, so nothing that a sandbox put there can lead out of it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_CHUNK = 1 << 24
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODATA)


@contextlib.contextmanager
def changes_allowed() -> Generator[None]:
    """Skip an entry that the sandbox's processes removed or replaced meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int, mode: int = 0o600) -> Generator[int]:
    """Open an entry of a directory that is not a symlink."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_file(name: str, folder: int) -> Generator[tuple[int, os.stat_result]]:
    """Open an entry that was a regular file when it was listed; never wait for the other end of a FIFO.

    :raises FileNotFoundError: if it is something else now.
    """
    with _opened(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, folder) as fd:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file any more", name)
        yield fd, info


class _Copier:
    def __init__(self, uids: dict[int, int]) -> None:
        self._uids = uids
        self._links: dict[int, tuple[int, str]] = {}

    def directory(self, source: int, target: int) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                with changes_allowed():
                    self._entry(source, target, entry.name, entry.stat(follow_symlinks=False))
        self._attributes(source, target)

    def _entry(self, source: int, target: int, name: str, info: os.stat_result) -> None:
        kind = stat.S_IFMT(info.st_mode)
        uid, gid = self._uids.get(info.st_uid, info.st_uid), self._uids.get(info.st_gid, info.st_gid)
        if kind == stat.S_IFDIR:
            self._subdirectory(source, target, name, info, uid, gid)
            return
        if info.st_nlink > 1 and kind != stat.S_IFLNK and self._link(target, name, info):
            return
        if kind == stat.S_IFREG:
            self._file(source, target, name, uid, gid)
            return
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, stat.S_IMODE(info.st_mode), dir_fd=target)
        elif kind == stat.S_IFCHR and info.st_rdev == 0:
            os.mknod(name, info.st_mode, 0, dir_fd=target)
        else:
            return
        os.chown(name, uid, gid, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _link(self, target: int, name: str, info: os.stat_result) -> bool:
        first = self._links.get(info.st_ino)
        if first is None:
            self._links[info.st_ino] = (os.dup(target), name)
            return False
        os.link(first[1], name, src_dir_fd=first[0], dst_dir_fd=target, follow_symlinks=False)
        return True

    def _subdirectory(
        self, source: int, target: int, name: str, info: os.stat_result, uid: int, gid: int
    ) -> None:
        with _opened(name, _DIRECTORY, source) as inner:
            os.mkdir(name, 0o700, dir_fd=target)
            with _opened(name, _DIRECTORY, target) as outer:
                self.directory(inner, outer)
                _set_metadata(outer, info, uid, gid)

    def _file(self, source: int, target: int, name: str, uid: int, gid: int) -> None:
        with opened_file(name, source) as (inner, info), _opened(name, _NEW_FILE, target) as outer:
            if info.st_size:
                _copy_data(inner, outer, info.st_size)
            _set_metadata(outer, info, uid, gid)
            self._attributes(inner, outer)

    def _attributes(self, source: int, target: int) -> None:
        try:
            names = os.listxattr(source)
        except OSError:
            return
        for name in names:
            if name.startswith("user."):
                os.setxattr(target, name, os.getxattr(source, name))

    def close(self) -> None:
        for fd, _ in self._links.values():
            os.close(fd)


def _set_metadata(fd: int, info: os.stat_result, uid: int, gid: int) -> None:
    os.fchown(fd, uid, gid)
    os.fchmod(fd, stat.S_IMODE(info.st_mode))
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))


def data_segments(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield position and length of each piece of data between the holes of a file."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            # gVisor's kernel may not know holes.
            if error.errno != errno.EINVAL:
                raise
            yield end, size - end
            return
        if start >= size:
            return
        # At least one byte further, also if the data becomes a hole meanwhile.
        end = min(max(os.lseek(fd, start, os.SEEK_HOLE), start + 1), size)
        yield start, end - start


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy a file's data and keep its holes."""
    for start, length in data_segments(source, size):
        os.lseek(target, start, os.SEEK_SET)
        position, end = start, start + length
        while position < end:
            sent = os.sendfile(target, source, position, min(_CHUNK, end - position))
            if sent == 0:
                break
            position += sent
    os.ftruncate(target, size)


def copy_tree(source: int, target: int, uids: dict[int, int]) -> None:
    """Copy everything below one directory into another; `uids` maps old owners to new ones.

    :raises OSError: with ENOSPC if it does not fit.
    """
    with contextlib.closing(_Copier(uids)) as copier:
        copier.directory(source, target)
