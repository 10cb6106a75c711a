"""Copy, archive and unpack the files of a sandbox, relative to directory descriptors.

The writable layer of a sandbox is a tree on a tmpfs, with overlay whiteouts, links and extended attributes. Paths
are never resolved through symlinks here, so nothing that a sandbox put there can lead out of it.
"""

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Generator
from typing import IO

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_CHUNK = 1 << 24
_PIECE = 1 << 16
_ATTRIBUTE = "SCHILY.xattr."
_OPAQUE = "user.overlay.opaque"


@contextlib.contextmanager
def _changes_allowed() -> Generator[None]:
    """Skip an entry that the sandbox's processes removed or replaced meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int, mode: int = 0o600) -> Generator[int]:
    """Open an entry of a directory that is not a symlink."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


class _Copier:
    def __init__(self, uids: dict[int, int]) -> None:
        self._uids = uids
        self._links: dict[int, tuple[int, str]] = {}

    def directory(self, source: int, target: int) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                with _changes_allowed():
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
            self._file(source, target, name, info, uid, gid)
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

    def _file(self, source: int, target: int, name: str, info: os.stat_result, uid: int, gid: int) -> None:
        with (
            _opened(name, os.O_RDONLY | os.O_NONBLOCK, source) as inner,
            _opened(name, _NEW_FILE, target) as outer,
        ):
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


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy a file's data and keep its holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        position = start
        while position < end:
            sent = os.sendfile(target, source, position, min(_CHUNK, end - position))
            if sent == 0:
                return
            position += sent
    os.ftruncate(target, size)


def copy_tree(source: int, target: int, uids: dict[int, int]) -> None:
    """Copy everything below one directory into another; `uids` maps old owners to new ones.

    :raises OSError: with ENOSPC if it does not fit.
    """
    with contextlib.closing(_Copier(uids)) as copier:
        copier.directory(source, target)


def pack(root: int, folders: tuple[str, ...], out: IO[bytes]) -> None:
    """Write the named folders below a directory as a tar archive."""
    # Links which a sandbox swaps in meanwhile can't lead out of the new root.
    os.fchdir(root)
    os.chroot(".")
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, dereference=False) as archive:
        for folder in folders:
            _pack_below(archive, folder)


def _pack_below(archive: tarfile.TarFile, top: str) -> None:
    waiting, device = [top], os.lstat(top).st_dev
    while waiting:
        name = waiting.pop()
        with _changes_allowed():
            info = os.lstat(name)
            if info.st_dev != device:
                # A mount of the host; not a file of the sandbox.
                continue
            archive.add(name, recursive=False, filter=_with_attributes)
            if stat.S_ISDIR(info.st_mode):
                waiting += sorted((f"{name}/{inner}" for inner in os.listdir(name)), reverse=True)


def _with_attributes(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.isreg() or entry.isdir():
        for name in filter(_is_kept, os.listxattr(entry.name, follow_symlinks=False)):
            value = os.getxattr(entry.name, name, follow_symlinks=False).decode("utf-8", "surrogateescape")
            entry.pax_headers = {**entry.pax_headers, _ATTRIBUTE + name: value}
    return entry


def _is_kept(name: str) -> bool:
    """Return whether an attribute is the sandbox user's, or marks a folder that hides the system's."""
    return name == _OPAQUE or (name.startswith("user.") and not name.startswith("user.overlay."))


def check(folders: tuple[str, ...], source: IO[bytes]) -> None:
    """Validate an archive without unpacking it.

    :raises ValueError: if it has an entry that `pack` does not write.
    """
    count = 0
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            links: set[str] = set()
            for entry in archive:
                _check_entry(folders, entry)
                for name in (entry.name, entry.linkname) if entry.islnk() else (entry.name,):
                    if _leading_folders(name) & links:
                        raise ValueError(f"a snapshot can't hold {name!r}: its path leads through a link")
                if entry.issym():
                    links.add(entry.name)
                count += 1
    except tarfile.TarError as error:
        raise ValueError(f"not a snapshot: {error}") from error
    if not count:
        raise ValueError("not a snapshot: it is empty")


def _leading_folders(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:length]) for length in range(1, len(parts))}


def _check_entry(folders: tuple[str, ...], entry: tarfile.TarInfo) -> None:
    for name in (entry.name, entry.linkname) if entry.islnk() else (entry.name,):
        if ".." in name.split("/") or not any(name == f or name.startswith(f + "/") for f in folders):
            raise ValueError(f"a snapshot can't hold {name!r}")
    is_whiteout = entry.ischr() and entry.devmajor == entry.devminor == 0
    is_link = entry.issym() or entry.islnk()
    if not (entry.isreg() or entry.isdir() or is_link or entry.isfifo() or is_whiteout):
        raise ValueError(f"a snapshot can't hold {entry.name!r}: not a file, a folder or a link")


def unpack(root: int, folders: tuple[str, ...], uid: int, source: IO[bytes]) -> None:
    """Unpack a checked archive below a directory whose named folders exist, are empty, and are used by no one else.

    :raises ValueError: if it has an entry that `pack` does not write.
    """
    os.fchdir(root)
    entered: list[tarfile.TarInfo] = []
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for entry in archive:
            _check_entry(folders, entry)
            owner = uid if entry.uid else 0
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None:
                archive.extract(entry, ".", set_attrs=False, filter="fully_trusted")
            else:
                _write_with_holes(content, entry)
            os.chown(entry.name, owner, owner, follow_symlinks=False)
            if entry.isreg() or entry.isdir():
                _restore_attributes(entry)
            if not (entry.issym() or entry.islnk() or entry.ischr()):
                os.chmod(entry.name, entry.mode & 0o1777)
            if entry.isdir():
                entered.append(entry)
            else:
                os.utime(entry.name, (entry.mtime, entry.mtime), follow_symlinks=False)
    for entry in reversed(entered):
        os.utime(entry.name, (entry.mtime, entry.mtime))


def _write_with_holes(content: IO[bytes], entry: tarfile.TarInfo) -> None:
    """Write a file and turn blocks of zeros back into holes."""
    with open(entry.name, "xb", buffering=0) as file:
        while piece := content.read(_PIECE):
            if piece.count(0) == len(piece):
                file.seek(len(piece), os.SEEK_CUR)
            else:
                file.write(piece)
        file.truncate(entry.size)


def _restore_attributes(entry: tarfile.TarInfo) -> None:
    for key, value in entry.pax_headers.items():
        name = key.removeprefix(_ATTRIBUTE)
        if name != key and _is_kept(name):
            os.setxattr(entry.name, name, value.encode("utf-8", "surrogateescape"))
