"""Cache on disk of search results and pages: one file per entry, written atomically, shared by processes."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec

from mcp_servers.web._settings import CacheSettings

T = TypeVar("T")

SWEEP_SHARE = 16
"""Old entries are removed after each 1/16 of the size limit was written."""


class WebCache:
    """Cache of replies by request. Without settings it is disabled; disk errors are ignored."""

    def __init__(self, settings: CacheSettings | None, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._wall = wall
        self._written: int | None = None
        self._folder = Path()
        if settings is not None:
            self._folder = (settings.folder or _default()).expanduser().absolute()

    async def get(self, asked: tuple[str, ...], shape: type[T]) -> T | None:
        """Return the cached reply to a request, if it has not expired."""
        if self._settings is None:
            return None
        data = await anyio.to_thread.run_sync(self._read, self._place(asked))
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def put(self, asked: tuple[str, ...], answer: object) -> None:
        """Store a reply."""
        if self._settings is not None and self._settings.bytes:
            await anyio.to_thread.run_sync(self._write, self._place(asked), msgspec.msgpack.encode(answer))

    def _place(self, asked: tuple[str, ...]) -> Path:
        name = hashlib.blake2b(msgspec.msgpack.encode(asked), digest_size=20).hexdigest()
        return self._folder / name[:2] / name

    def _read(self, place: Path) -> bytes | None:
        assert self._settings is not None
        try:
            with place.open("rb") as file:
                age = self._wall() - os.fstat(file.fileno()).st_mtime
                return file.read() if age < self._settings.seconds else None
        except OSError:
            return None

    def _write(self, place: Path, data: bytes) -> None:
        assert self._settings is not None
        if len(data) > self._settings.bytes:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, unfinished = tempfile.mkstemp(dir=place.parent)
        except OSError:
            return
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.utime(unfinished, (self._wall(), self._wall()))
            os.replace(unfinished, place)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            return
        self._written = None if self._written is None else self._written + len(data)
        if self._written is None or self._written > self._settings.bytes // SWEEP_SHARE:
            self._evict(self._settings)
            self._written = 0

    def _evict(self, settings: CacheSettings) -> None:
        """Remove expired entries, then the oldest, until 1/16 of the size limit is free."""
        kept: list[tuple[float, int, Path]] = []
        now = self._wall()
        for path in self._folder.glob("??/*"):
            try:
                found = path.stat()
                if now - found.st_mtime >= settings.seconds:
                    path.unlink()
                else:
                    kept.append((found.st_mtime, found.st_size, path))
            except FileNotFoundError:
                continue  # removed by another process
        size = sum(one[1] for one in kept)
        room = settings.bytes - settings.bytes // SWEEP_SHARE
        for _, freed, path in sorted(kept):
            if size <= room:
                return
            path.unlink(missing_ok=True)
            size -= freed


def _default() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "agentflow/web"
