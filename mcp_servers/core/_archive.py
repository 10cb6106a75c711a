"""Workspaces of ended sessions, kept on disk so that a new session can start with them."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile

import anyio
import anyio.to_thread

from runtimes import Snapshot

logger = logging.getLogger(__name__)

SUFFIX = ".files"


class Archive:
    """A folder of workspace archives with a maximum total size; the oldest are deleted first.

    An archive is keyed by session handle and owner together, so owners cannot read each other's. Archives outlive the server.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Use `folder` for at most `most_bytes` of archives."""
        self._folder = folder
        self._most = most_bytes

    async def keep(self, handle: str, owner: str, files: Snapshot) -> None:
        """Keep the files of a session that ends. A workspace larger than the limit is not kept, and a warning is logged."""
        if len(files.archive) > self._most:
            logger.warning("the files of a session of %s exceed the archive's limit and are not kept", owner)
            return
        await anyio.to_thread.run_sync(self._write, self._place(handle, owner), files.archive)

    async def find(self, handle: str, owner: str) -> Snapshot | None:
        """Return the kept files of that owner's session, or `None`."""
        try:
            return Snapshot(await anyio.Path(self._place(handle, owner)).read_bytes())
        except FileNotFoundError:
            return None

    def _place(self, handle: str, owner: str) -> Path:
        name = blake2b(f"{owner}\0{handle}".encode(), digest_size=24).hexdigest()
        return self._folder / f"{name}{SUFFIX}"

    def _write(self, place: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(data))
        # Readable only by the owner of the process, and written atomically.
        with NamedTemporaryFile(dir=self._folder, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, place)
            except BaseException:
                os.unlink(file.name)
                raise

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
