"""Workspaces of ended sessions, kept on disk so that a new session can start with them."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Protocol

import anyio
import anyio.to_thread

logger = logging.getLogger(__name__)

SUFFIX = ".files"


class SavesFiles(Protocol):
    """Something with files that it can write to an archive; see `runtimes.Instance.save`."""

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """Write all files to a file.

        :raises OSError: with EFBIG if they have more than `max_bytes`.
        """
        ...


class Archive:
    """A folder of workspace archives with a maximum total size; the oldest are deleted first.

    An archive is keyed by session handle and owner together, so owners cannot read each other's. Archives outlive the server.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Use `folder` for at most `most_bytes` of archives."""
        self._folder = folder
        self._most = most_bytes

    async def keep(self, handle: str, owner: str, session: SavesFiles) -> None:
        """Keep the files of a session that ends. A workspace larger than the limit is not kept, and a warning is logged.

        They are written to disk directly: the server never has them in memory.
        """
        file = await anyio.to_thread.run_sync(self._new_file)
        try:
            await session.save(file, max_bytes=self._most)
            await anyio.to_thread.run_sync(self._commit, file, self._place(handle, owner))
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            logger.warning("the files of a session of %s exceed the archive's limit and are not kept", owner)
        finally:
            file.close()
            # A file that was kept has another name.
            await anyio.Path(file.name).unlink(missing_ok=True)

    async def find(self, handle: str, owner: str) -> IO[bytes] | None:
        """Open the kept files of that owner's session, or return `None`."""
        try:
            return await anyio.to_thread.run_sync(self._place(handle, owner).open, "rb")
        except FileNotFoundError:
            return None

    def _place(self, handle: str, owner: str) -> Path:
        name = blake2b(f"{owner}\0{handle}".encode(), digest_size=24).hexdigest()
        return self._folder / f"{name}{SUFFIX}"

    def _new_file(self) -> IO[bytes]:
        """Create a file that only the owner of the process can read."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return NamedTemporaryFile(dir=self._folder, delete=False)

    def _commit(self, file: IO[bytes], place: Path) -> None:
        self._make_room(os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())
        os.replace(file.name, place)

    def _make_room(self, needed: int) -> None:
        kept = sorted(self._kept())
        total = needed + sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if total <= self._most:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _kept(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the modification time, size and path of each archive."""
        for path in self._folder.glob(f"*{SUFFIX}"):
            # Several processes share the folder: another one may have deleted the file.
            with suppress(FileNotFoundError):
                stat = path.stat()
                yield stat.st_mtime, stat.st_size, path
