"""Reading of run folders, which may come from elsewhere: regular files inside the folder, of bounded size.

A FIFO, a device, a link that leaves the folder and a file beyond its bound are an `OSError` whose reason is one line.
"""

import errno
import gzip
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

MAX_FILE: Final = 64 << 20
"""Bytes of a file that is read as a whole."""
MAX_LINE: Final = 256 << 20
"""Bytes of a line."""
MIN_MEMORY: Final = 128 << 20
"""Memory that the lines of any file may take."""
MAX_GROWTH: Final = 160
"""Memory that lines may take for each byte of their file, if that is more. Packed text of models takes about 40, with one text for
all episodes up to 210."""
QUERY_SECONDS: Final = 5.0
"""Processor time of a query."""
_BYTES_PER_SECOND: Final = 20e6
_LINE_BYTES: Final = 128
_VALUE_BYTES: Final = 32
_KINDS: Final = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
_STEPS: Final = 100_000
_HEADER_BYTES: Final = 100
# The columns of `sqlite_master` can be forged; SQLite itself goes by the text of the statement.
_NO_TABLES: Final = """
    SELECT name FROM sqlite_master
    WHERE sql NOT LIKE 'CREATE TABLE %' AND sql NOT LIKE 'CREATE INDEX %' AND sql NOT LIKE 'CREATE UNIQUE INDEX %'
    UNION ALL
    SELECT tables.name FROM sqlite_master AS tables JOIN pragma_table_xinfo(tables.name) AS columns
    WHERE tables.type = 'table' AND columns.hidden > 0
    LIMIT 1
"""


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path, with all links followed, is a folder or below it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def check_regular(status: os.stat_result, path: Path) -> None:
    """Check that a status is that of a regular file.

    :raises OSError: if not.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def find_file(path: Path, root: Path) -> Path:
    """Return the path of a regular file in a folder, with all links followed. The file is not opened.

    :raises OSError: if there is none, or a link leaves the folder.
    """
    target = Path(os.path.realpath(path, strict=True))
    if not is_inside(target, root):
        raise OSError(errno.ELOOP, "a link leads out of the folder of the run", str(path))
    check_regular(target.lstat(), path)
    return target


def open_file(path: Path, root: Path) -> BinaryIO:
    """Open a regular file in a folder for reading.

    :raises OSError: if there is none, or a link leaves the folder.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(find_file(path, root), flags)
    try:
        check_regular(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, root: Path, limit: int = MAX_FILE) -> bytes:
    """Return the bytes of a regular file in a folder.

    :raises OSError: if there is none, a link leaves the folder, or it is larger than the limit.
    """
    with open_file(path, root) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return data


def read_lines(path: Path, root: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file in a folder, unpacked if its name ends with `.gz`.

    All lines together may take `MAX_GROWTH` times the size of the file in memory, or `MIN_MEMORY` if that is more.

    :raises OSError: if there is none, a link leaves the folder, or it is damaged or unpacks to more.
    """
    with open_file(path, root) as packed:
        left = max(MIN_MEMORY, MAX_GROWTH * os.fstat(packed.fileno()).st_size)
        file = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
        try:
            while line := file.readline(most := min(left // 2, MAX_LINE) + 1):
                left -= 2 * len(line) + _LINE_BYTES + _VALUE_BYTES * line.count(b",")
                if len(line) == most or left < 0:
                    raise OSError(errno.EFBIG, "it unpacks to too much for its size", str(path))
                yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise OSError(errno.EIO, f"it is damaged: {error}", str(path)) from None


def unpack(data: bytes, limit: int = MAX_FILE) -> bytes:
    """Return bytes from their zlib form.

    :raises ValueError: if they are damaged, or more than the limit.
    """
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError(f"it is damaged, or unpacks to more than {limit:,} bytes")
    return whole


def connect_read_only(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a SQLite file that may come from elsewhere, for reading.

    It must have nothing but tables and indices, because SQLite runs the statements of views, triggers and computed columns.

    :param immutable: no process writes it.
    :raises sqlite3.Error: if it can't be read, or has more than tables.
    :raises OSError: if a log beside it is no regular file; SQLite would wait for the other end of a FIFO.
    """
    for log in (Path(f"{path}{end}") for end in ("-journal", "-wal", "-shm")):
        with suppress(FileNotFoundError):
            check_regular(log.lstat(), log)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        limit_query(connection, path)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)
        for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {pragma}")
        if (row := connection.execute(_NO_TABLES).fetchone()) is not None:
            raise sqlite3.DatabaseError(f"{row[0]} has a statement of its own; a journal has only tables")
    except BaseException:
        connection.close()
        raise
    return connection


def limit_query(connection: sqlite3.Connection, path: Path) -> None:
    """Interrupt what a connection does from now on after `QUERY_SECONDS` of processor time; large files have more."""
    seconds = max(QUERY_SECONDS, path.stat().st_size / _BYTES_PER_SECOND)
    end = time.thread_time() + seconds
    connection.set_progress_handler(lambda: time.thread_time() > end, _STEPS)


def sqlite_reason(error: BaseException, path: Path | None = None) -> str:
    """Return the message of a SQLite error as one line; for a damaged file, the number of its pages that are left."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_INTERRUPT":
        return "a query takes too long for the size of the file; it is damaged, or was made so"
    if path is not None and name.startswith("SQLITE_CORRUPT") and (left := _pages_left(path)):
        return left
    return " ".join(str(error).split()) or type(error).__name__


def _pages_left(path: Path) -> str:
    """Return the number of pages of a SQLite file that was cut; empty: it has all."""
    try:
        with path.open("rb") as file:
            header, size = file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size
    except OSError:
        return ""
    if len(header) < _HEADER_BYTES:
        return "it is cut within its first page"
    page_bytes, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    left = size // page_bytes if page_bytes else pages
    return f"pages left: {left:,} of {pages:,}" if left < pages else ""
