"""What was read of documents, kept on disk by their content: shared by processes, bounded."""

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["Store"]

_ROOM = 0.9
"""When it is too full, it is emptied to this share of what it may hold."""


class Store:
    """Bytes by name in a folder. Everything here may block."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._used: int | None = None

    def get(self, name: str) -> bytes | None:
        """What is kept under that name; it is used now."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep it, in one step. Where there is no room, or nothing can be written, nothing is kept."""
        if len(data) > self._most:
            return
        part = self._folder / f".{secrets.token_hex(8)}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(data)
            part.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            return
        self._used = None if self._used is None else self._used + len(data)
        if self._used is None or self._used > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Drop what was not used for longest; other processes may do so too."""
        kept: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    kept.append((status.st_mtime, status.st_size, Path(entry.path)))
        self._used = sum(size for _, size, _ in kept)
        if self._used <= self._most:
            return
        for _, size, path in sorted(kept):
            if self._used <= self._most * _ROOM:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            self._used -= size
