"""Program that reads data files in the sandbox, and takes statistics of their tables: each file in a process of its own."""

import hashlib
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypedDict

import duckdb

from mcp_servers.data.inside._sources import DataSource, UnreadableData, connect, kind_of, tables_of
from mcp_servers.sql.inside._values import cell, quoted

MAX_PROFILED_COLUMNS = 100
ROWS = 200_000
SAMPLE = 3
TOP = 3
MAX_TEXT = 200
"""Longest value in characters."""
KEY_VALUES = 20_000
"""Most values of a column to be used as a key."""
COMPARED = 500
"""Most values of a column to look up in the keys of other tables."""
LEAST_OVERLAP = 0.8
FEWEST_VALUES = 5
"""Minimum number of common values of columns with different names, because small numbers match by chance."""
MAX_LINKS = 50
_NESTED = ("STRUCT", "MAP", "UNION", "JSON", "[]", "VARIANT")
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "U")
_NO_KEYS = ("BOOLEAN", "FLOAT", "DOUBLE", "DECIMAL", "TIMESTAMP", "DATE", "TIME", "INTERVAL")


class ColumnFacts(TypedDict):
    """Statistics of a column: a `ColumnProfile` of the results, and values for finding links."""

    name: str
    type: str
    nulls: int
    distinct: int | None
    min: object
    max: object
    mean: float | None
    top: list[dict[str, object]]
    values: list[str]
    """Hashes of values."""
    unique: bool
    """All values are distinct and included in `values`."""


class TableFacts(TypedDict):
    """Statistics of a table: a `TableProfile` of the results."""

    sheet: str | None
    note: str
    row_count: int
    profiled_rows: int
    column_count: int
    columns: list[ColumnFacts]
    sample: list[list[object]]


Named = tuple[str, TableFacts]
"""A table, and the name of its file."""


def profiles(connection: duckdb.DuckDBPyConnection, path: str) -> list[TableFacts]:
    """Describe every table of a file.

    :raises UnreadableData: if there is none.
    """
    return [_table(connection, source) for source in tables_of(connection, path)]


def _table(connection: duckdb.DuckDBPyConnection, source: DataSource) -> TableFacts:
    total = _first_row(connection, f"SELECT count(*) FROM {source.expression}")[0]
    connection.execute(f"CREATE OR REPLACE TABLE looked_at AS SELECT * FROM {source.expression} LIMIT {ROWS}")
    described = connection.execute("DESCRIBE looked_at").fetchall()
    rows = connection.execute(f"SELECT * FROM looked_at LIMIT {SAMPLE}").fetchall()
    counted = int(str(total))
    return {
        "sheet": source.sheet,
        "note": source.note,
        "row_count": counted,
        "profiled_rows": min(counted, ROWS),
        "column_count": len(described),
        "columns": [
            _column(connection, str(column[0]), str(column[1])) for column in described[:MAX_PROFILED_COLUMNS]
        ],
        "sample": [[_short(value) for value in row[:MAX_PROFILED_COLUMNS]] for row in rows],
    }


def _column(connection: duckdb.DuckDBPyConnection, name: str, type: str) -> ColumnFacts:
    column = quoted(name)
    nested = any(mark in type for mark in _NESTED)
    if nested:
        (nulls,) = _first_row(connection, f"SELECT count(*) - count({column}) FROM looked_at")
        statistics: tuple[object, ...] = (nulls, None, None, None, None, 0)
    else:
        mean = f"avg({column})" if type.startswith(_NUMBERS) else "NULL"
        statistics = _first_row(
            connection,
            f"SELECT count(*) - count({column}), count(DISTINCT {column}), min({column}), max({column}), {mean}, "
            f"count({column}) FROM looked_at",
        )
    nulls, distinct, least, most, mean, present = statistics
    unique = not nested and distinct == present and 0 < int(str(present)) <= KEY_VALUES
    values = [] if nested or type.startswith(_NO_KEYS) else _fingerprints(connection, column, unique=unique)
    return {
        "name": name[:MAX_TEXT],
        "type": type[:MAX_TEXT],
        "nulls": int(str(nulls)),
        "distinct": None if distinct is None else int(str(distinct)),
        "min": _short(least),
        "max": _short(most),
        "mean": mean if isinstance(mean, float) else None,
        "top": [] if nested or unique else _top(connection, column),
        "values": values,
        "unique": unique and bool(values),
    }


def _top(connection: duckdb.DuckDBPyConnection, column: str) -> list[dict[str, object]]:
    rows = connection.execute(
        f"SELECT {column}, count(*) AS n FROM looked_at WHERE {column} IS NOT NULL GROUP BY ALL "
        f"ORDER BY n DESC, {column} LIMIT {TOP}"
    ).fetchall()
    return [{"value": _short(value), "count": int(count)} for value, count in rows]


def _fingerprints(connection: duckdb.DuckDBPyConnection, column: str, *, unique: bool) -> list[str]:
    rows = connection.execute(
        f"SELECT DISTINCT CAST({column} AS VARCHAR) FROM looked_at WHERE {column} IS NOT NULL "
        f"LIMIT {KEY_VALUES if unique else COMPARED}"
    ).fetchall()
    return [
        hashlib.blake2b(str(row[0]).strip().encode("utf-8", "replace"), digest_size=6).hexdigest()
        for row in rows
    ]


def _first_row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[object, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


def _short(value: object) -> object:
    shown = cell(value)
    return f"{shown[:MAX_TEXT]}…" if isinstance(shown, str) and len(shown) > MAX_TEXT else shown


def links(tables: list[Named]) -> list[dict[str, Any]]:
    """Return the most likely links, best first."""
    ranked = sorted(_links(tables), key=lambda link: (-link["overlap"], link["file"], link["column"]))
    return ranked[:MAX_LINKS]


def _links(tables: list[Named]) -> Iterator[dict[str, Any]]:
    keys = [
        (file, table, column, frozenset(column["values"]))
        for file, table in tables
        for column in table["columns"]
        if column["unique"]
    ]
    for file, table in tables:
        for column in table["columns"]:
            for other_file, other, key, values in keys:
                if other is table or not column["values"]:
                    continue
                overlap = sum(value in values for value in column["values"]) / len(column["values"])
                alike = _alike(column["name"], key["name"], other["sheet"] or other_file)
                if overlap >= LEAST_OVERLAP and (alike or _informative(column, key)):
                    yield {
                        "file": file,
                        "sheet": table["sheet"],
                        "column": column["name"],
                        "to_file": other_file,
                        "to_sheet": other["sheet"],
                        "to_column": key["name"],
                        "overlap": round(overlap, 3),
                    }


def _alike(name: str, key: str, table: str) -> bool:
    here, there = _plain(name), _plain(key)
    stem = _plain(re.split(r"[./\\]", table.rpartition("/")[2])[0])
    # `customer_id`, `customer` or `customers_id` of a table `customers` with the key `id`.
    return here == there or here in {
        form + end for form in (stem, stem.removesuffix("s")) for end in ("", there, "id")
    }


def _informative(column: ColumnFacts, key: ColumnFacts) -> bool:
    texts = column["type"] == key["type"] == "VARCHAR"
    return texts and len(column["values"]) >= FEWEST_VALUES


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


Work: TypeAlias = Callable[[duckdb.DuckDBPyConnection], dict[str, Any]]
"""Work that returns JSON values."""
READ_BYTES = 1 << 16
OVERHEAD = 1 << 30
"""Address space used by the interpreter and the libraries."""
WAITING = 3
"""Wall-clock limit of a process, as a multiple of its CPU limit."""
_TOO_LONG = "reading it takes longer than {:g} seconds, or gives too much"
MAX_REPLY = 64 << 20
"""Largest reply in bytes."""
MAX_OTHERS = 100
MAX_ENTRIES = 20_000
MAX_COLUMNS = 2_000
"""Most columns described in one reply; those of the first tables."""
READ_WHOLE = 64 << 20
"""Largest file, in bytes, that is checked completely before a part of it is read."""


class FileRequest(TypedDict):
    """Request to the program."""

    do: str
    """`inspect` or `read`."""
    path: str
    """Directory to inspect, or file to read."""
    seconds: float
    """Time limit of the request."""
    memory: int
    """Memory limit per file in bytes."""
    files: int
    """Most files to inspect."""
    file_seconds: float
    """Time limit per file."""
    sheet: str | None
    """Sheet to read."""
    columns: list[str]
    """Columns to read; empty for all."""
    where: str
    """Condition on the rows."""
    offset: int
    """Number of rows to skip."""
    rows: int
    """Most rows to read."""
    bytes: int
    """Size limit of the rows."""


def main(request: FileRequest) -> None:
    """Handle the request and write the reply to standard output."""
    ends = time.monotonic() + request["seconds"]
    try:
        answer = _inspect(request, ends) if request["do"] == "inspect" else _read(request, ends)
    except OSError as error:
        answer = {"errno": error.errno, "unreadable": error.strerror or str(error)}
    json.dump(answer, sys.stdout)


def _inspect(request: FileRequest, ends: float) -> dict[str, Any]:
    root = request["path"]
    if not os.path.isdir(root):
        os.stat(root)
        root, names = os.path.dirname(root), [os.path.basename(root)]
        others, more = list[str](), 0
    else:
        os.listdir(root)
        names, others, more = _data_files(root, request["files"])
    files: list[dict[str, Any]] = []
    tables: list[Named] = []
    for name in names:
        path = os.path.join(root, name)
        file: dict[str, Any] = {"name": _shown(name), "kind": kind_of(path) or "other", "size": 0}
        try:
            file["size"] = os.path.getsize(path)
            file |= _alone(partial(_profiled, path), request, ends)
        except OSError as error:
            file["unreadable"] = error.strerror or str(error)
        tables += [(file["name"], table) for table in file.get("tables", [])]
        files.append(file)
    linked = links(tables)
    left = MAX_COLUMNS
    for _, table in tables:
        if len(table["columns"]) > left:
            table["columns"] = table["columns"][:left]
            table["sample"] = [row[:left] for row in table["sample"]] if left else []
        left -= len(table["columns"])
        for column in table["columns"]:
            column["values"] = []
    return {"files": files, "links": linked, "others": others, "more": more}


def _profiled(path: str, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    return {"tables": profiles(connection, path)}


def _data_files(root: str, most: int) -> tuple[list[str], list[str], int]:
    """Return data files, other files (relative names), and the number of further data files."""
    data: list[str] = []
    others: list[str] = []
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            seen += 1
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.startswith("."):
                (data if kind_of(name) else others).append(path)
        if seen > MAX_ENTRIES:
            break
    return data[:most], [_shown(name) for name in others[:MAX_OTHERS]], max(len(data) - most, 0)


def _read(request: FileRequest, ends: float) -> dict[str, Any]:
    path = request["path"]
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    os.stat(path)
    return _alone(partial(_rows, request), request, ends)


def _rows(request: FileRequest, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    whole = os.path.getsize(request["path"]) <= READ_WHOLE
    source = tables_of(connection, request["path"], request["sheet"], whole=whole)[0]
    column_names = [
        str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {source.expression}").fetchall()
    ]
    lower = {name.lower(): name for name in column_names}
    for name in request["columns"]:
        if name.lower() not in lower:
            return {"wrong_column": name, "known": column_names}
    names = [lower[name.lower()] for name in request["columns"]]
    chosen = ", ".join(map(quoted, names)) or "*"
    where = f"WHERE ({request['where']}\n)" if request["where"] else ""
    query = f"SELECT {chosen} FROM {source.expression} {where} LIMIT {request['rows'] + 1} OFFSET {request['offset']}"
    try:
        if len(connection.extract_statements(query)) != 1:
            return {"wrong_filter": "it is no single condition"}
        connection.execute(query)
    except duckdb.Error as error:
        if not request["where"]:
            raise UnreadableData(str(error).partition("\n")[0]) from None
        return {"wrong_filter": str(error).partition("\n\nLINE")[0]}
    columns = [{"name": str(column[0]), "type": str(column[1])} for column in connection.description or ()]
    rows: list[list[object]] = []
    size, more = 0, False
    while not more and (row := connection.fetchone()) is not None:
        shown = [cell(value) for value in row]
        size += len(json.dumps(shown))
        more = len(rows) == request["rows"] or size > request["bytes"]
        rows += [] if more else [shown]
    return {"columns": columns, "rows": rows, "more": more, "note": source.note, "sheet": source.sheet}


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _alone(work: Work, request: FileRequest, ends: float) -> dict[str, Any]:
    """Run `work` in its own process with its own database; return its result or `{"unreadable": reason}`."""
    seconds, left = request["file_seconds"], ends - time.monotonic()
    if left <= 0:
        return {"unreadable": "not looked at: the time was up"}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(work, writing, seconds, request["memory"])
    os.close(writing)
    try:
        data = _received(reading, time.monotonic() + min(left, WAITING * seconds))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if data is None:
        return {"unreadable": _TOO_LONG.format(seconds)}
    try:
        return json.loads(data)
    except ValueError:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return {"unreadable": _TOO_LONG.format(seconds)}
        return {"unreadable": f"its reader broke off (status {status}); it may be damaged or too large"}


def _work(work: Work, writing: int, seconds: float, memory: int) -> None:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory + OVERHEAD, memory + OVERHEAD))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = work(connect(memory))
        except UnreadableData as error:
            answer = {"unreadable": str(error)}
        except (MemoryError, duckdb.OutOfMemoryException):
            answer = {"unreadable": "reading it needs too much memory"}
        except Exception as error:  # boundary: any error of a file is reported, and the next one is read
            answer = {"unreadable": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(writing, data) :]
        status = 0
    finally:
        os._exit(status)


def _received(descriptor: int, ends: float) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while size <= MAX_REPLY:
        ready, _, _ = select.select([descriptor], [], [], max(ends - time.monotonic(), 0))
        if not ready:
            return None
        part = os.read(descriptor, READ_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return None
