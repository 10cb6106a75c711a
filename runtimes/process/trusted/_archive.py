"""Archive the files of a sandbox, validate archives, and unpack them, relative to directory descriptors.

An archive is a tar file in the PAX format; holes are left out (`GNU.sparse.map`), so its size is bounded by the disk
space of the sandbox. Archives may come from outside: the reader refuses every name that `pack` would not write, and
folders are opened one name at a time and never through a symlink, so no entry can lead out of the tree.
"""

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import IO, Self

from runtimes.process.trusted import _copy

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_MAX = 4096
_NAME_MAX = 255
_PIECE = 1 << 20
_HOLE = 1 << 16
_ATTRIBUTE = "SCHILY.xattr."
_OPAQUE = "user.overlay.opaque"
_MAP = "GNU.sparse.map"
_SECOND = 1_000_000_000
_LATEST = 1 << 38
_MAX_SIZE = 1 << 62


class _InvalidSnapshot(ValueError):
    """An archive that `pack` does not write."""


def pack(root: int, folders: tuple[str, ...], out: IO[bytes]) -> None:
    """Write the named folders below a directory as a tar archive.

    Entries that the sandbox's processes remove or replace meanwhile are left out.

    :raises OSError: if it does not fit, or a path has more than 4096 bytes.
    """
    packer = _Packer(out)
    for folder in folders:
        with contextlib.closing(_FolderStack(root)) as stack:
            packer.tree(stack.enter(folder.split("/")), folder)
    packer.end()


class _Packer:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._size = 0
        self._links: dict[int, str] = {}

    def tree(self, top: int, path: str) -> None:
        device = os.fstat(top).st_dev
        waiting: list[tuple[int, str, Iterator[str]]] = []
        try:
            waiting.append(self._folder(os.dup(top), path))
            while waiting:
                folder, path, names = waiting[-1]
                name = next(names, None)
                if name is None:
                    os.close(waiting.pop()[0])
                    continue
                with _copy.changes_allowed():
                    inner = self._entry(folder, name, f"{path}/{name}", device)
                    if inner >= 0:
                        waiting.append(self._folder(inner, f"{path}/{name}"))
        finally:
            for folder, _, _ in waiting:
                os.close(folder)

    def _folder(self, fd: int, path: str) -> tuple[int, str, Iterator[str]]:
        """Write the entry of an open folder; return it with its path and names."""
        try:
            self._header(path, os.fstat(fd), tarfile.DIRTYPE, records=_attributes(fd))
            return fd, path, iter(sorted(os.listdir(fd)))
        except BaseException:
            os.close(fd)
            raise

    def _entry(self, folder: int, name: str, path: str, device: int) -> int:
        """Write an entry of a folder; return the descriptor of a folder, which is not written yet, and otherwise -1."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if info.st_dev != device:
            # A mount of the host; not a file of the sandbox.
            return -1
        if kind == stat.S_IFDIR:
            return os.open(name, _FOLDER, dir_fd=folder)
        if kind == stat.S_IFREG:
            self._file(folder, name, path, info)
        elif kind == stat.S_IFLNK:
            self._header(path, info, tarfile.SYMTYPE, link=os.readlink(name, dir_fd=folder))
        elif kind == stat.S_IFIFO:
            self._header(path, info, tarfile.FIFOTYPE)
        elif kind == stat.S_IFCHR and info.st_rdev == 0:
            self._header(path, info, tarfile.CHRTYPE)
        return -1

    def _file(self, folder: int, name: str, path: str, info: os.stat_result) -> None:
        if info.st_nlink > 1 and info.st_ino in self._links:
            self._header(path, info, tarfile.LNKTYPE, link=self._links[info.st_ino])
            return
        with _copy.opened_file(name, folder) as (fd, now):
            segments = list(_copy.data_segments(fd, now.st_size))
            stored, records = sum(length for _, length in segments), _attributes(fd)
            if stored < now.st_size:
                # Ends the map, also of a file that is one hole.
                segments.append((now.st_size, 0))
                numbers = (str(number) for segment in segments for number in segment)
                records |= {"GNU.sparse.size": str(now.st_size), "GNU.sparse.numblocks": str(len(segments))}
                records[_MAP] = ",".join(numbers)
            self._header(path, now, tarfile.REGTYPE, size=stored, records=records)
            if now.st_nlink > 1:
                self._links[now.st_ino] = path
            for start, length in segments:
                self._data(fd, start, length)
            self._pad(tarfile.BLOCKSIZE)

    def _data(self, fd: int, start: int, length: int) -> None:
        """Write part of a file; what was cut off meanwhile becomes zeros."""
        while length:
            piece = os.pread(fd, min(_PIECE, length), start) or bytes(min(_PIECE, length))
            self._write(piece)
            start, length = start + len(piece), length - len(piece)

    def _header(
        self,
        path: str,
        info: os.stat_result,
        kind: bytes,
        *,
        size: int = 0,
        link: str = "",
        records: Mapping[str, str] | None = None,
    ) -> None:
        if len(os.fsencode(path)) > _PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, "directories are nested too deeply", path[:80])
        entry = tarfile.TarInfo(path)
        entry.type, entry.size, entry.linkname = kind, size, link
        entry.mode, entry.uid, entry.gid = stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid
        entry.mtime = info.st_mtime
        entry.pax_headers = {**(records or {}), "mtime": _decimal(info.st_mtime_ns)}
        self._write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._size += len(data)

    def _pad(self, block: int) -> None:
        self._write(bytes(-self._size % block))

    def end(self) -> None:
        """Write the end of the archive."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._pad(tarfile.RECORDSIZE)


def _decimal(nanoseconds: int) -> str:
    """Return seconds without rounding, which the library's number would have."""
    sign, (seconds, rest) = "-" * (nanoseconds < 0), divmod(abs(nanoseconds), _SECOND)
    return f"{sign}{seconds}.{rest:09}" if rest else f"{sign}{seconds}"


def _attributes(fd: int) -> dict[str, str]:
    return {
        _ATTRIBUTE + name: os.getxattr(fd, name).decode("utf-8", "surrogateescape")
        for name in filter(_is_kept, os.listxattr(fd))
    }


def _is_kept(name: str) -> bool:
    """Return whether an attribute is the sandbox user's, or marks a folder that hides the system's."""
    return name == _OPAQUE or (name.startswith("user.") and not name.startswith("user.overlay."))


def check(folders: tuple[str, ...], source: IO[bytes]) -> None:
    """Validate an archive without unpacking it.

    :raises ValueError: if it has an entry that `pack` does not write.
    """
    if not sum(1 for _ in _read(folders, source)):
        raise _InvalidSnapshot("not a snapshot: it is empty")


class _Reader(tarfile.TarFile):
    """Reader whose undocumented attribute is declared."""

    members: list[tarfile.TarInfo]


_Content = Iterable[tuple[int, bytes]]
"""Data of a file: pieces with their positions."""


def _read(folders: tuple[str, ...], source: IO[bytes]) -> Generator[tuple[tarfile.TarInfo, _Content]]:
    """Yield the checked entries of an archive, each with the content of a file."""
    kinds: dict[str, bytes] = {}
    source.seek(0)
    with _damage_reported(), _Reader.open(fileobj=source, mode="r:") as archive:
        while (entry := archive.next()) is not None:
            # It would keep every entry in memory.
            archive.members.clear()
            _check_entry(folders, entry)
            _check_place(kinds, entry)
            yield entry, _content(archive, entry, _segments(entry, archive.offset)) if entry.isreg() else ()
        source.seek(archive.offset)
        if source.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            # The library takes an invalid header, or none, for the end.
            raise _InvalidSnapshot("not a snapshot: it is damaged")


@contextlib.contextmanager
def _damage_reported() -> Generator[None]:
    try:
        yield
    except _InvalidSnapshot:
        raise
    except MemoryError:
        raise _InvalidSnapshot("not a snapshot: its headers are too large") from None
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError, RecursionError) as error:
        raise _InvalidSnapshot(f"not a snapshot: {str(error)[:200]}") from error


def _content(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, segments: Iterable[tuple[int, int]]
) -> _Content:
    with _damage_reported():
        file = archive.extractfile(entry)
        assert file is not None
        for start, length in segments:
            file.seek(start)
            while length:
                piece = file.read(min(_HOLE, length))
                if not piece:
                    raise _InvalidSnapshot("not a snapshot: it ends too early")
                # Archives without a map have zeros for holes.
                if piece.count(0) < len(piece):
                    yield start, piece
                start, length = start + len(piece), length - len(piece)


def _segments(entry: tarfile.TarInfo, next_entry: int) -> list[tuple[int, int]]:
    """Return positions and lengths of a file's data.

    :param next_entry: position of the next entry in the archive.
    """
    if not entry.issparse():
        return [(0, entry.size)]
    if _MAP not in entry.pax_headers:
        raise _refusal(entry.name, "holes in a form that is not supported")
    numbers = [int(number) for number in entry.pax_headers[_MAP].split(",")]
    segments = list(zip(numbers[::2], numbers[1::2], strict=True))
    end = 0
    for start, length in segments:
        if start < end or length < 0:
            raise _refusal(entry.name, "its holes overlap")
        end = start + length
    if end > entry.size or entry.offset_data + sum(length for _, length in segments) > next_entry:
        raise _refusal(entry.name, "its holes do not match its size")
    return segments


def _refusal(name: str, reason: str) -> _InvalidSnapshot:
    return _InvalidSnapshot(f"a snapshot can't hold {name[:200]!r}: {reason}")


def _check_entry(folders: tuple[str, ...], entry: tarfile.TarInfo) -> None:
    for name in (entry.name, entry.linkname) if entry.islnk() else (entry.name,):
        if not any(name == folder or name.startswith(folder + "/") for folder in folders):
            raise _refusal(name, "it is not in a writable folder")
        _check_name(name)
    if entry.name in folders and not entry.isdir():
        raise _refusal(entry.name, "it must be a folder")
    is_whiteout = entry.ischr() and entry.devmajor == entry.devminor == 0
    is_link = entry.issym() or entry.islnk()
    if not (entry.isreg() or entry.isdir() or is_link or entry.isfifo() or is_whiteout):
        raise _refusal(entry.name, "not a file, a folder or a link")
    if entry.issym() and not (
        0 < len(os.fsencode(entry.linkname)) < _PATH_MAX and "\0" not in entry.linkname
    ):
        raise _refusal(entry.name, "its target is not a valid path")
    if not 0 <= entry.size < _MAX_SIZE:
        raise _refusal(entry.name, "its size is not valid")
    if not abs(entry.mtime) < _LATEST:
        raise _refusal(entry.name, "its time is not valid")


def _check_name(name: str) -> None:
    """Refuse a name that is not the one and only form of a path: the checks compare names as text."""
    parts = name.split("/")
    too_long = len(os.fsencode(name)) > _PATH_MAX or any(len(os.fsencode(part)) > _NAME_MAX for part in parts)
    if too_long or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise _refusal(name, "not a normal path")


def _check_place(kinds: dict[str, bytes], entry: tarfile.TarInfo) -> None:
    """Refuse an entry below or in the place of an earlier one that is not a folder, and a link to anything but a file."""
    if entry.name in kinds:
        raise _refusal(entry.name, "it is there twice")
    for name in (entry.name, entry.linkname) if entry.islnk() else (entry.name,):
        folder = os.path.dirname(name)
        while folder and folder not in kinds:
            kinds[folder] = tarfile.DIRTYPE
            folder = os.path.dirname(folder)
        if folder and kinds[folder] != tarfile.DIRTYPE:
            raise _refusal(name, "its path leads through a link")
    if entry.islnk() and kinds.get(entry.linkname) != tarfile.REGTYPE:
        raise _refusal(entry.name, "it links to something else than an earlier file")
    kinds[entry.name] = tarfile.REGTYPE if entry.isreg() or entry.islnk() else entry.type


class _FolderStack:
    """The folders on the path to the current one, open: neighbouring entries share most of them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def enter(self, names: Sequence[str]) -> int:
        """Open a folder and the folders above it, never through a link; create those that are missing.

        The descriptor is valid until the next call.
        """
        shared = 0
        while shared < min(len(self._open), len(names)) and self._open[shared][0] == names[shared]:
            shared += 1
        self._close(shared)
        for name in names[shared:]:
            above = self._open[-1][1] if self._open else self._root
            try:
                fd = os.open(name, _FOLDER, dir_fd=above)
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=above)
                fd = os.open(name, _FOLDER, dir_fd=above)
            self._open.append((name, fd))
        return self._open[-1][1] if self._open else self._root

    def _close(self, left: int) -> None:
        while len(self._open) > left:
            os.close(self._open.pop()[1])

    def close(self) -> None:
        """Close all."""
        self._close(0)


def unpack(root: int, folders: tuple[str, ...], uid: int, source: IO[bytes]) -> None:
    """Unpack an archive below a directory whose named folders exist, are empty, and are used by no one else.

    :raises ValueError: if it has an entry that `pack` does not write.
    :raises OSError: with ENOSPC if it does not fit.
    """
    umask = os.umask(0)
    try:
        _unpack(root, folders, uid, source)
    finally:
        os.umask(umask)


def _unpack(root: int, folders: tuple[str, ...], uid: int, source: IO[bytes]) -> None:
    entered: list[tuple[str, int]] = []
    with _FolderStack(root) as above, _FolderStack(root) as linked:
        for entry, content in _read(folders, source):
            owner = uid if entry.uid else 0
            *parents, name = entry.name.split("/")
            if entry.isdir():
                _finish(above.enter([*parents, name]), entry, owner)
                entered.append((entry.name, _modified(entry)))
                continue
            folder = above.enter(parents)
            if entry.isreg():
                _write_file(folder, name, entry, owner, content)
            elif entry.islnk():
                *parents, first = entry.linkname.split("/")
                os.link(
                    first,
                    name,
                    src_dir_fd=linked.enter(parents),
                    dst_dir_fd=folder,
                    follow_symlinks=False,
                )
            else:
                _make_node(folder, name, entry, owner)
        for path, modified in reversed(entered):
            fd = above.enter(path.split("/"))
            os.utime(fd, ns=(modified, modified))


def _write_file(folder: int, name: str, entry: tarfile.TarInfo, owner: int, content: _Content) -> None:
    fd = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        for position, piece in content:
            view = memoryview(piece)
            while view:
                done = os.pwrite(fd, view, position)
                view, position = view[done:], position + done
        os.ftruncate(fd, entry.size)
        _finish(fd, entry, owner)
        modified = _modified(entry)
        os.utime(fd, ns=(modified, modified))
    finally:
        os.close(fd)


def _make_node(folder: int, name: str, entry: tarfile.TarInfo, owner: int) -> None:
    """Create a symlink, a FIFO or a whiteout."""
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=folder)
    elif entry.isfifo():
        os.mkfifo(name, entry.mode & 0o1777, dir_fd=folder)
    else:
        os.mknod(name, stat.S_IFCHR | entry.mode & 0o777, 0, dir_fd=folder)
    os.chown(name, owner, owner, dir_fd=folder, follow_symlinks=False)
    modified = _modified(entry)
    os.utime(name, ns=(modified, modified), dir_fd=folder, follow_symlinks=False)


def _modified(entry: tarfile.TarInfo) -> int:
    """Return the modification time in nanoseconds."""
    text = entry.pax_headers.get("mtime", "")
    seconds, _, rest = text.removeprefix("-").partition(".")
    if not (seconds.isdecimal() and (rest or "0").isdecimal()):
        return int(entry.mtime * _SECOND)
    nanoseconds = int(seconds) * _SECOND + int(rest[:9].ljust(9, "0"))
    return -nanoseconds if text.startswith("-") else nanoseconds


def _finish(fd: int, entry: tarfile.TarInfo, owner: int) -> None:
    """Set owner, mode and attributes of a file or folder."""
    os.fchown(fd, owner, owner)
    os.fchmod(fd, entry.mode & 0o1777)
    for key, value in entry.pax_headers.items():
        name = key.removeprefix(_ATTRIBUTE)
        if name != key and _is_kept(name):
            os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
