"""Entry point of the program that reads data files in the sandbox."""

import json
import os
import sys
import time
from functools import partial
from typing import Any, TypedDict

import duckdb

from mcp_servers.data.inside._inspection import Work, alone
from mcp_servers.data.inside._links import Named, links
from mcp_servers.data.inside._profile import profiles
from mcp_servers.data.inside._sources import UnreadableData, kind_of, tables_of
from mcp_servers.sql.inside._values import cell

MOST_OTHERS = 100
MOST_ENTRIES = 20_000
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
        root, found = os.path.dirname(root), [os.path.basename(root)]
        others: list[str] = []
        more = 0
    else:
        os.listdir(root)
        found, others, more = _found(root, request["files"])
    files: list[dict[str, Any]] = []
    tables: list[Named] = []
    for name in found:
        path = os.path.join(root, name)
        file: dict[str, Any] = {"name": _shown(name), "kind": kind_of(path) or "other", "size": 0}
        try:
            file["size"] = os.path.getsize(path)
            file |= _looked_at(partial(_profiled, path), request, ends)
        except OSError as error:
            file["unreadable"] = error.strerror or str(error)
        tables += [(file["name"], table) for table in file.get("tables", [])]
        files.append(file)
    linked = links(tables)
    for _, table in tables:
        for column in table["columns"]:
            column["values"] = []
    return {"files": files, "links": linked, "others": others, "more": more}


def _looked_at(work: Work, request: FileRequest, ends: float) -> dict[str, Any]:
    left = ends - time.monotonic()
    return alone(work, seconds=request["file_seconds"], left=left, memory=request["memory"])


def _profiled(path: str, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    return {"tables": profiles(connection, path)}


def _found(root: str, most: int) -> tuple[list[str], list[str], int]:
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
        if seen > MOST_ENTRIES:
            break
    return data[:most], [_shown(name) for name in others[:MOST_OTHERS]], max(len(data) - most, 0)


def _read(request: FileRequest, ends: float) -> dict[str, Any]:
    path = request["path"]
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    os.stat(path)
    return _looked_at(partial(_rows, request), request, ends)


def _rows(request: FileRequest, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    whole = os.path.getsize(request["path"]) <= READ_WHOLE
    source = tables_of(connection, request["path"], request["sheet"], whole=whole)[0]
    known = [
        str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {source.expression}").fetchall()
    ]
    lower = {name.lower(): name for name in known}
    for name in request["columns"]:
        if name.lower() not in lower:
            return {"wrong_column": name, "known": known}
    names = [lower[name.lower()] for name in request["columns"]]
    chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in names) or "*"
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
    columns = [{"name": str(one[0]), "type": str(one[1])} for one in connection.description or ()]
    rows: list[list[object]] = []
    size = 0
    while (row := connection.fetchone()) is not None:
        shown = [cell(value) for value in row]
        size += len(json.dumps(shown))
        if len(rows) == request["rows"] or size > request["bytes"]:
            return {
                "columns": columns,
                "rows": rows,
                "more": True,
                "note": source.note,
                "sheet": source.sheet,
            }
        rows.append(shown)
    return {"columns": columns, "rows": rows, "more": False, "note": source.note, "sheet": source.sheet}


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
