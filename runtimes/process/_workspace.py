"""Files of an instance, read and written through descriptors that the sandbox init process opens."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import anyio.to_thread

from agentflow.errors import RuntimeFailure
from runtimes._protocol import FileInfo
from runtimes.process.trusted._wire import WireMessage

T = TypeVar("T")

_LARGE = 1 << 20
"""Contents of at least this many bytes are read and written in a thread."""


class FileRequester(Protocol):
    """Function that requests one file operation."""

    def __call__(
        self,
        action: str,
        path: str,
        details: Mapping[str, object] | None = None,
        *,
        op: str = "file",
        fds: Sequence[int] = (),
    ) -> Awaitable[WireMessage]:
        """Return the reply."""
        ...


def new_name() -> str:
    """Return a random name for an instance."""
    return secrets.token_hex(8)


def file_info(fields: list[Any]) -> FileInfo:
    """Build a `FileInfo` from its fields."""
    return FileInfo(*fields)


async def _off_loop(work: Callable[[], T], size: int) -> T:
    return work() if size < _LARGE else await anyio.to_thread.run_sync(work)


async def read(ask: FileRequester, path: str, offset: int, length: int | None) -> bytes:
    """Read a regular file, or a part of it."""
    if offset < 0 or (length is not None and length < 0):
        raise ValueError("offset and length can't be negative")
    fd = (await ask("open", path)).fds[0]
    try:
        there = max(0, os.fstat(fd).st_size - offset)
        wanted = there if length is None else min(there, length)
        return await _off_loop(lambda: _read(fd, offset, wanted), wanted)
    finally:
        os.close(fd)


def _read(fd: int, offset: int, length: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(offset)
        return file.read(length)


async def write(
    ask: FileRequester, path: str, data: bytes, *, append: bool, executable: bool, limit: int | None
) -> None:
    """Write a regular file, atomically unless `append` is set."""
    view = memoryview(data)
    token = secrets.token_hex(8)
    reply = await ask("create", path, {"append": append, "executable": executable, "token": token})
    fd, target = reply.fds[0], reply.fields.get("target", path)
    done = append
    try:
        if limit is not None and os.fstat(fd).st_size + len(view) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        await _off_loop(lambda: _write(fd, view, path), len(view))
        if not append:
            await ask("commit", target, {"temporary": reply.fields["temporary"]})
        done = True
    finally:
        os.close(fd)
        if not done:
            with anyio.CancelScope(shield=True), contextlib.suppress(OSError, RuntimeFailure):
                await ask("commit", target, {"temporary": reply.fields["temporary"], "abandon": True})


def _write(fd: int, view: memoryview, path: str) -> None:
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


async def list_folder(ask: FileRequester, path: str, *, recursive: bool) -> list[FileInfo]:
    """List a directory, sorted by path, without following links."""
    fd = os.memfd_create("entries")
    try:
        await ask("list", path, {"recursive": recursive}, op="list", fds=[fd])
        return await _off_loop(lambda: _entries(fd), os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _entries(fd: int) -> list[FileInfo]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        return sorted((file_info(json.loads(line)) for line in file), key=lambda info: info.path)
