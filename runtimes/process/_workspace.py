"""Files of an instance, through descriptors that the mason opens."""

import os
import secrets
import stat
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from runtimes._protocol import WORKSPACE, FileInfo
from runtimes.process._wire import Message


class Ask(Protocol):
    """Asks the mason for one file operation."""

    def __call__(
        self, action: str, path: str, details: Mapping[str, object] | None = None
    ) -> Awaitable[Message]:
        """The mason's answer."""
        ...


_MAX_ENTRIES = 1_000_000
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def new_name() -> str:
    """A name for an instance."""
    return secrets.token_hex(8)


def file_info(fields: list[Any]) -> FileInfo:
    """A `FileInfo` from its fields."""
    return FileInfo(*fields)


async def read(ask: Ask, path: str, offset: int, length: int | None) -> bytes:
    """Bytes of a regular file."""
    fd = (await ask("open", path)).fds[0]
    with os.fdopen(fd, "rb") as file:
        file.seek(offset)
        return file.read() if length is None else file.read(length)


async def write(ask: Ask, path: str, data: bytes, *, append: bool, executable: bool) -> None:
    """Write a regular file; all or nothing unless appending."""
    token = secrets.token_hex(4)
    reply = await ask("create", path, {"append": append, "executable": executable, "token": token})
    target = reply.fields.get("target", path)
    try:
        with os.fdopen(reply.fds[0], "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
    except OSError:
        if not append:
            await ask("commit", target, {"temporary": reply.fields["temporary"], "abandon": True})
        raise
    if not append:
        await ask("commit", target, {"temporary": reply.fields["temporary"]})


async def list_folder(ask: Ask, path: str, *, recursive: bool) -> list[FileInfo]:
    """Entries of a directory, read by descriptor; nothing is followed."""
    fd = (await ask("open", path, {"directory": True})).fds[0]
    found: list[FileInfo] = []
    try:
        _scan(fd, _absolute(path), recursive, found)
    finally:
        os.close(fd)
    return sorted(found, key=lambda info: info.path)


def _absolute(path: str) -> str:
    return os.path.normpath(os.path.join(WORKSPACE, path))


def _scan(fd: int, place: str, recursive: bool, found: list[FileInfo]) -> None:
    with os.scandir(fd) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            where = os.path.join(place, entry.name)
            found.append(_describe(fd, entry.name, where, info))
            if len(found) > _MAX_ENTRIES:
                raise OSError(f"more than {_MAX_ENTRIES} entries below {place}")
            if recursive and stat.S_ISDIR(info.st_mode):
                _descend(fd, entry.name, where, found)


def _descend(fd: int, name: str, where: str, found: list[FileInfo]) -> None:
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return
    try:
        _scan(inner, where, True, found)
    finally:
        os.close(inner)


def _describe(fd: int, name: str, where: str, info: os.stat_result) -> FileInfo:
    kind: Any = _KINDS.get(stat.S_IFMT(info.st_mode), "other")
    target = None
    if kind == "symlink":
        try:
            target = os.readlink(name, dir_fd=fd)
        except OSError:
            target = ""
    return FileInfo(where, kind, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime, target)
