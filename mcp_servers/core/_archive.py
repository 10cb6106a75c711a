"""Workspaces of ended sessions, kept in a folder or a bucket so that a new session can start with them."""

import errno
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final, NamedTuple, Protocol

import anyio
import anyio.to_thread

from agentflow.errors import ConfigurationError

logger = logging.getLogger(__name__)

SUFFIX: Final = ".files"
_PARTIAL: Final = ".partial"
_ABANDONED_SECONDS: Final = 3600.0
"""Time without a write after which a partial file belongs to a server that was killed."""


class SavesFiles(Protocol):
    """Something with files that it can write to an archive; see `runtimes.Instance.save`."""

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """Write all files to a file.

        :raises OSError: with EFBIG if they have more than `max_bytes`.
        """
        ...


class StoredArchive(NamedTuple):
    """One kept workspace. Sorted, the oldest comes first, for every server in the same order."""

    modified: float
    """Time at which it was published, by the clock of the storage."""
    name: str
    """Its name."""
    size: int
    """Its size in bytes."""


class ArchiveStorage(Protocol):
    """Storage that several servers share. An archive is visible once it is complete."""

    upload_seconds: float
    """Time that publishing may take, beyond writing the files."""

    async def check(self) -> None:
        """Check that it can be used.

        :raises ConfigurationError: with one line, if not.
        """
        ...

    async def new_file(self) -> IO[bytes]:
        """Create a file that only this user can read."""
        ...

    async def publish(self, file: IO[bytes], name: str) -> None:
        """Store a complete file under a name."""
        ...

    async def discard(self, file: IO[bytes]) -> None:
        """Close a new file and remove what was not published of it."""
        ...

    async def open(self, name: str) -> IO[bytes] | None:
        """Open the archive of that name to read it, or return `None`."""
        ...

    async def list(self) -> list[StoredArchive]:
        """Return all archives."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete archives; other servers may delete the same ones."""
        ...


class Archive:
    """Archives of workspaces with a maximum total size; the oldest are deleted first.

    An archive is keyed by session handle and owner together, so owners cannot read each other's. Archives outlive the server.

    Servers that share a storage need no lock: each publishes its archive and then deletes the oldest ones above the limit. All
    see the same order, so none deletes more than the limit requires. The total exceeds the limit only while archives are
    being published.
    """

    def __init__(self, storage: ArchiveStorage, max_bytes: int) -> None:
        """Use a storage for at most `max_bytes` of archives."""
        self._storage = storage
        self._max_bytes = max_bytes
        self.upload_seconds = storage.upload_seconds
        """Time that keeping files may take, beyond writing them."""

    async def check(self) -> None:
        """Check that the storage can be used.

        :raises ConfigurationError: with one line, if not.
        """
        await self._storage.check()

    async def keep(self, handle: str, owner: str, session: SavesFiles) -> None:
        """Keep the files of a session that ends. A workspace larger than the limit is not kept, and a warning is logged.

        They are written to disk directly: the server never has them in memory.

        :raises OSError: if they can't be written.
        :raises ToolFailure: `unavailable`, if the bucket can't be used.
        """
        file = await self._storage.new_file()
        try:
            await session.save(file, max_bytes=self._max_bytes)
            await self._storage.publish(file, _name_of(handle, owner))
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            logger.warning("the files of a session of %s exceed the archive's limit and are not kept", owner)
            return
        finally:
            with anyio.CancelScope(shield=True):
                await self._storage.discard(file)
        await self._make_room()

    async def find(self, handle: str, owner: str) -> IO[bytes] | None:
        """Open the kept files of that owner's session, or return `None`.

        :raises ToolFailure: `unavailable`, if the bucket can't be used.
        """
        return await self._storage.open(_name_of(handle, owner))

    async def _make_room(self) -> None:
        archives = sorted(await self._storage.list())
        total = sum(archive.size for archive in archives)
        oldest: list[str] = []
        for archive in archives:
            if total <= self._max_bytes:
                break
            oldest.append(archive.name)
            total -= archive.size
        if oldest:
            await self._storage.delete(oldest)


def _name_of(handle: str, owner: str) -> str:
    return blake2b(f"{owner}\0{handle}".encode(), digest_size=24).hexdigest() + SUFFIX


class FolderStorage:
    """Folder on this machine, or on a file system that several machines mount."""

    upload_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def check(self) -> None:
        """Check that a file can be written."""
        try:
            await self.discard(await self.new_file())
        except OSError as error:
            message = f"sessions.archive.folder: {self._folder}: {error.strerror}; name a folder that this user can write to"
            raise ConfigurationError(message) from None

    async def new_file(self) -> IO[bytes]:
        """Create a partial file in the folder."""
        return await anyio.to_thread.run_sync(self._new_file)

    async def publish(self, file: IO[bytes], name: str) -> None:
        """Flush the file to disk and give it its name."""
        await anyio.to_thread.run_sync(self._publish, file, self._folder / name)

    async def discard(self, file: IO[bytes]) -> None:
        """Close and remove a partial file; one that was published has another name."""
        file.close()
        await anyio.Path(file.name).unlink(missing_ok=True)

    async def open(self, name: str) -> IO[bytes] | None:
        """Open the archive's file."""
        try:
            return await anyio.to_thread.run_sync((self._folder / name).open, "rb")
        except FileNotFoundError:
            return None

    async def list(self) -> list[StoredArchive]:
        """Return the archives in the folder."""
        return await anyio.to_thread.run_sync(lambda: list(self._files(SUFFIX)))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete files. Programs on this machine that read one can read it to its end."""
        for name in names:
            await anyio.Path(self._folder / name).unlink(missing_ok=True)

    def _new_file(self) -> IO[bytes]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return NamedTemporaryFile(dir=self._folder, suffix=_PARTIAL, delete=False)

    def _publish(self, file: IO[bytes], path: Path) -> None:
        # The file server sets the current time: the clocks of its clients may differ.
        os.utime(file.fileno())
        os.fsync(file.fileno())
        now = os.fstat(file.fileno()).st_mtime
        os.replace(file.name, path)
        for partial in self._files(_PARTIAL):
            if partial.modified < now - _ABANDONED_SECONDS:
                (self._folder / partial.name).unlink(missing_ok=True)

    def _files(self, suffix: str) -> Iterator[StoredArchive]:
        for path in self._folder.glob(f"*{suffix}"):
            # Several processes share the folder: another one may have deleted the file.
            with suppress(FileNotFoundError):
                stat = path.stat()
                yield StoredArchive(stat.st_mtime, path.name, stat.st_size)
