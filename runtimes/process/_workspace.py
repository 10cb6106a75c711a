"""Files of an instance, read and written through descriptors that the sandbox init process opens."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import anyio
import anyio.to_thread

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._protocol import FileInfo, InstanceSpec
from runtimes.process._channel import RequestChannel
from runtimes.process.trusted._wire import WireMessage

T = TypeVar("T")

_LARGE = 1 << 20
"""Contents of at least this many bytes are read and written in a thread."""


def new_name() -> str:
    """Return a random name for an instance."""
    return secrets.token_hex(8)


class WorkspaceFiles:
    """Files of an instance; see `runtimes.Instance`."""

    def __init__(self, client: RequestChannel, name: str, spec: InstanceSpec) -> None:
        self._client = client
        self._id = name
        self._spec = spec
        self._gone = False

    def _check(self) -> None:
        if self._gone:
            raise InstanceGone("the instance has ended")

    async def _file(
        self,
        action: str,
        path: str,
        details: Mapping[str, object] | None = None,
        *,
        op: str = "file",
        fds: Sequence[int] = (),
    ) -> WireMessage:
        self._check()
        request = {**(details or {}), "action": action, "path": path}
        return await self._client.ask(op, fds, sandbox=self._id, request=request)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `runtimes.Instance.read`."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length can't be negative")
        fd = (await self._file("open", path)).fds[0]
        try:
            there = max(0, os.fstat(fd).st_size - offset)
            wanted = there if length is None else min(there, length)
            return await _off_loop(lambda: _read(fd, offset, wanted), wanted)
        finally:
            os.close(fd)

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """See `runtimes.Instance.write`."""
        view, limit = memoryview(data), self._spec.limits.file_bytes
        details = {"append": append, "executable": executable, "token": secrets.token_hex(8)}
        reply = await self._file("create", path, details)
        fd, target = reply.fds[0], reply.fields.get("target", path)
        done = append
        try:
            if limit is not None and os.fstat(fd).st_size + len(view) > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            await _off_loop(lambda: _write(fd, view, path), len(view))
            if not append:
                await self._file("commit", target, {"temporary": reply.fields["temporary"]})
            done = True
        finally:
            os.close(fd)
            if not done:
                abandoned = {"temporary": reply.fields["temporary"], "abandon": True}
                with anyio.CancelScope(shield=True), contextlib.suppress(OSError, RuntimeFailure):
                    await self._file("commit", target, abandoned)

    async def list(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """See `runtimes.Instance.list`."""
        fd = os.memfd_create("entries")
        try:
            await self._file("list", path, {"recursive": recursive}, op="list", fds=[fd])
            return await _off_loop(lambda: _entries(fd), os.fstat(fd).st_size)
        finally:
            os.close(fd)

    async def stat(self, path: str) -> FileInfo:
        """See `runtimes.Instance.stat`."""
        return FileInfo(*(await self._file("stat", path)).fields["info"])

    async def make_directory(self, path: str) -> None:
        """See `runtimes.Instance.make_directory`."""
        await self._file("mkdir", path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `runtimes.Instance.remove`."""
        await self._file("remove", path, op="remove" if recursive else "file")

    async def move(self, source: str, destination: str, *, replace: bool = False) -> None:
        """See `runtimes.Instance.move`."""
        await self._file("move", source, {"destination": destination, "replace": replace})


async def _off_loop(work: Callable[[], T], size: int) -> T:
    return work() if size < _LARGE else await anyio.to_thread.run_sync(work)


async def read_content(fd: int) -> bytes:
    """Return the content of a file, outside the event loop if it is large."""
    size = os.fstat(fd).st_size
    return await _off_loop(lambda: _read(fd, 0, size), size)


async def write_content(fd: int, data: bytes) -> None:
    """Write data to a file, outside the event loop if it is large."""
    await _off_loop(lambda: _write(fd, memoryview(data), "snapshot"), len(data))


def _read(fd: int, offset: int, length: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(offset)
        return file.read(length)


def _write(fd: int, view: memoryview, path: str) -> None:
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _entries(fd: int) -> list[FileInfo]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        return sorted((FileInfo(*json.loads(line)) for line in file), key=lambda info: info.path)
