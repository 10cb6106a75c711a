"""Size-limited cache of files in a directory, shared by processes."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_REFILL_SHARE = 0.9
"""A full cache is emptied to this share of its limit."""


class DiskCache:
    """Cache of files that drops the oldest entries. All methods may block; disk errors are ignored.

    The name of an entry is its path in the directory. Without a lifetime, reading an entry makes it the newest.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        lifetime: float | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Configure the cache; the directory is created by the first entry.

        :param lifetime: seconds after which an entry expires.
        :param wall: wall clock.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._lifetime = lifetime
        self._wall = wall
        self._used: int | None = None

    def get(self, name: str) -> bytes | None:
        """Return an entry, if there is one that has not expired."""
        path = self._folder / name
        try:
            if self._lifetime is None:
                data = path.read_bytes()
                os.utime(path)
                return data
            with path.open("rb") as file:
                age = self._wall() - os.fstat(file.fileno()).st_mtime
                return file.read() if age < self._lifetime else None
        except OSError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Store an entry atomically. An entry that is too large is dropped."""
        if len(data) > self._max_bytes:
            return
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        except OSError:
            return
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.utime(unfinished, (self._wall(), self._wall()))
            os.replace(unfinished, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            return
        self._used = None if self._used is None else self._used + len(data)
        if self._used is None or self._used > self._max_bytes:
            self._evict()

    def _evict(self) -> None:
        """Remove expired entries, then the oldest; other processes may do so at the same time."""
        cached: list[tuple[float, int, Path]] = []
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(path := Path(folder, name))
                    cached.append((status.st_mtime, status.st_size, path))
        self._used = sum(size for _, size, _ in cached)
        target = self._max_bytes * _REFILL_SHARE if self._used > self._max_bytes else self._used
        expired = float("-inf") if self._lifetime is None else self._wall() - self._lifetime
        for stored, size, path in sorted(cached):
            if self._used <= target and stored > expired:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            self._used -= size


def user_cache(name: str) -> Path:
    """Return the directory in the user's cache directory: `user_cache("web")`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentflow" / name
