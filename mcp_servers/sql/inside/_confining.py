"""Confinement of a worker to its database: the kernel refuses what the engine's own settings refuse, should they fail.

A worker of a file can open this file and its journals only, and no connection; one of a Postgres database connects to
its server and changes no file. Neither can start a program. Rules are bound to the files that exist at the start:
a journal that another program creates later is refused, and the host then starts another worker.
"""

import importlib.util
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runtimes._confinement import refuse_changes, restrict_calls, restrict_files

from ._engine import DatabaseSpec

JOURNALS = ("-journal", "-wal", "-shm", ".wal")
"""Endings of the names of the files beside a database, of SQLite and of DuckDB."""
_PUBLIC = ("/dev/urandom", "/etc/localtime", "/usr/share/zoneinfo")
"""Random numbers and time zones, which engines read."""
_CGROUP = "/proc/self/cgroup"
_SIZES = (_CGROUP, "/sys/fs/cgroup", "/sys/devices/system/cpu/online")
"""The machine's size, which DuckDB reads; it ends the process if it may not."""
_Identity = tuple[int, int] | None


class DatabaseFiles:
    """The files of a database as they were at the worker's start."""

    def __init__(self, target: str) -> None:
        names = dict.fromkeys((target, os.path.realpath(target)))
        self.paths = [f"{name}{ending}" for name in names for ending in ("", *JOURNALS)]
        self._before = self._identities()

    def replaced(self) -> bool:
        """Return whether a file exists now that is not the one of the start."""
        now = self._identities()
        return any(
            identity is not None and identity != before
            for identity, before in zip(now, self._before, strict=True)
        )

    def _identities(self) -> list[_Identity]:
        return [_identity(path) for path in self.paths]


def confine(database: DatabaseSpec) -> None:
    """Confine this process to its database, irrevocably. It must have one thread."""
    if database.engine in ("postgres", "keeper"):
        refuse_changes()
        return
    target = os.path.realpath(database.target)
    index = Path(f"{target}-shm")
    if database.engine == "sqlite" and not database.writable and Path(f"{target}-wal").exists():
        # SQLite reads a file with this journal only with an index, which this process could not create later.
        # In a directory that is read-only for this process too, the engine reports it.
        with suppress(OSError):
            index.touch(0o600)
    public = _PUBLIC
    if database.engine == "duckdb":
        public = (*_PUBLIC, *_SIZES)
        # Kept open, since the rule counts only as long as the kernel keeps this file's inode.
        with suppress(OSError):
            os.open(_CGROUP, os.O_RDONLY)
    restrict_files(
        readable=[*_real([*DatabaseFiles(database.target).paths, *public]), *_time_zones()],
        writable=[str(index)],
        folder=database.folder,
    )
    restrict_calls(files=True)


def _real(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(os.path.realpath(path) for path in paths))


def _time_zones() -> list[str]:
    """Return the directory of the library with which DuckDB converts times, if it is installed."""
    spec = importlib.util.find_spec("pytz")
    return [os.path.dirname(spec.origin)] if spec is not None and spec.origin else []


def _identity(path: str) -> _Identity:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
