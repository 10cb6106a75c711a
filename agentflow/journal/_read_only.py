"""Databases opened for reading only."""

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from agentflow._folder_files import check_regular, connect_read_only, limit_query
from agentflow.errors import ConfigurationError

T = TypeVar("T")

READ_ERRORS = (SQLAlchemyError, OSError, sqlite3.Error)


class ReadAccess(Protocol):
    """Database opened for reading."""

    shown: str

    def read(self, ask: Callable[[Connection], T]) -> T: ...

    def now(self, connection: Connection) -> float: ...

    def close(self) -> None: ...


class ReadOnlySqlite:
    """SQLite file opened for reading.

    A file without a write-ahead log is opened as immutable, so that SQLite creates no file beside it. Before and after each
    query, its size and time and those of the log are compared: once a writer appears, the query is repeated.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            reason = "is a folder, no journal" if path.is_dir() else "no such file"
            raise ConfigurationError(f"{path}: {reason}; name the output_dir of a run, or its journal.db")
        self.shown = str(path)
        self._path = path
        self._lock = Lock()
        self._state: tuple[object, ...] = ()
        self._engine: Engine | None = None

    def read(self, ask: Callable[[Connection], T]) -> T:
        while True:
            state = self._look()
            engine = self._open(state)
            try:
                with engine.connect() as connection:
                    driver = connection.connection.driver_connection
                    assert isinstance(driver, sqlite3.Connection)
                    limit_query(driver, self._path)
                    result = ask(connection)
            except READ_ERRORS:
                if self._look() == state:
                    raise
                continue
            if state[0] == "shared" or self._look() == state:
                return result

    def now(self, connection: Connection) -> float:
        del connection
        return time.time()

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine, self._state = None, ()

    def _look(self) -> tuple[object, ...]:
        """Return the state of the files that decides how the journal is opened."""
        about = self._path.stat()
        # SQLite would wait for the other end of a FIFO.
        check_regular(about, self._path)
        if any(_size(Path(f"{self._path}{end}")) for end in ("-wal", "-journal")):
            return "shared", about.st_ino
        return "immutable", about.st_ino, about.st_size, about.st_mtime_ns

    def _open(self, state: tuple[object, ...]) -> Engine:
        with self._lock:
            if self._engine is None or self._state != state:
                if self._engine is not None:
                    self._engine.dispose()
                connect = partial(connect_read_only, self._path, immutable=state[0] == "immutable")
                # The default pool of this URL closes connections that other threads are using.
                engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=4)
                self._engine, self._state = engine, state
            return self._engine


def _size(path: Path) -> int:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return 0
    check_regular(about, path)
    return about.st_size
