"""Data files as tables of DuckDB, whatever their format."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import duckdb

Foreign: TypeAlias = Any
"""An object of a library without types."""

_KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "excel",
    ".xlsm": "excel",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_PACKED = (".gz", ".zst")
_OLD = ".xls"
MAX_SHEETS = 20
FIRST_ROWS = 2_000
MAX_CELLS = 2_000_000


class UnreadableData(Exception):
    """A file contains no readable table; the message is one line."""


@dataclass(slots=True)
class DataSource:
    """One table in a file."""

    expression: str
    """SQL expression to use after FROM."""
    sheet: str | None = None
    """Sheet of a workbook."""
    note: str = ""
    """Note on how the file was read."""


def kind_of(path: str) -> str | None:
    """Return `csv`, `parquet`, `excel` or `json` by the file's name, or `None` for other files."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _PACKED:
        kind = _KINDS.get(os.path.splitext(stem)[1])
        return kind if kind in ("csv", "json") else None
    return "excel" if suffix == _OLD else _KINDS.get(suffix)


def connect(memory: int) -> duckdb.DuckDBPyConnection:
    """Return an in-memory database that can read files but has no network access."""
    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": f"{memory // 1024}KiB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        },
    )


def tables_of(
    connection: duckdb.DuckDBPyConnection, path: str, sheet: str | None = None, *, whole: bool = True
) -> list[DataSource]:
    """Return the tables of a file, or only a named sheet.

    :param whole: check that every row can be read, and not only the first ones.
    :raises UnreadableData: if there is none.
    """
    if not os.path.isfile(path):
        raise UnreadableData("it is no regular file")
    if os.path.getsize(path) == 0:
        raise UnreadableData("the file is empty")
    match kind_of(path):
        case "excel":
            sources = list(_sheets(connection, path, sheet))
            if not sources:
                raise UnreadableData("it holds no table")
            return sources
        case "csv":
            attempts = _csv(_text(path))
        case "parquet":
            attempts, whole = [DataSource(f"read_parquet({_text(path)})")], False
        case "json":
            attempts = _json(f"{_text(path)}, maximum_object_size = 67108864")
        case _:
            raise UnreadableData("it is no CSV, TSV, Parquet, Excel or JSON file")
    return [_first_readable(connection, attempts, whole=whole)]


def _json(arguments: str) -> list[DataSource]:
    return [
        DataSource(f"read_json_auto({arguments})"),
        DataSource(
            f"read_json_auto({arguments}, format = 'newline_delimited', ignore_errors = true)",
            note="lines that are no JSON are left out",
        ),
    ]


def _csv(named: str) -> list[DataSource]:
    loose = "all_varchar = true, ignore_errors = true, strict_mode = false, null_padding = true"
    return [
        DataSource(f"read_csv({named})"),
        DataSource(f"read_csv({named}, sample_size = -1)"),
        DataSource(f"read_csv({named}, encoding = 'latin-1')", note="it is not UTF-8: read as Latin-1"),
        DataSource(
            f"read_csv({named}, {loose})",
            note="not every line fits: all columns are read as text, lines that can't be read are left out",
        ),
    ]


def _first_readable(
    connection: duckdb.DuckDBPyConnection, attempts: list[DataSource], *, whole: bool
) -> DataSource:
    wrong = ""
    for source in attempts:
        try:
            rows = connection.execute(f"SELECT * FROM {source.expression}").fetchmany(FIRST_ROWS)
            if wrong and all(value is None for row in rows for value in row):
                # Invalid rows are skipped here, so reading the first rows is enough.
                continue
            if whole:
                # Reads each value, because an error may occur late in the file.
                connection.execute(f"SELECT count(COLUMNS(*)) FROM {source.expression}").fetchall()
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            wrong = wrong or str(error).partition("\n")[0]
            continue
        return source
    raise UnreadableData(wrong)


def _sheets(connection: duckdb.DuckDBPyConnection, path: str, wanted: str | None) -> Iterator[DataSource]:
    if path.lower().endswith(_OLD):
        raise UnreadableData("the old .xls format can't be read: save it as .xlsx")
    try:
        import openpyxl
    except ImportError:
        raise UnreadableData("it is an Excel file, which needs the extra data") from None
    try:
        book: Foreign = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except MemoryError:
        raise
    except Exception as error:  # boundary: a hostile file can make the library raise anything
        raise UnreadableData(f"no workbook: {type(error).__name__}: {error}") from None
    names = [name for name in book.sheetnames if wanted is None or name == wanted]
    if wanted is not None and not names:
        raise UnreadableData(f"there is no sheet {wanted!r}. There are: {', '.join(book.sheetnames)}")
    for number, name in enumerate(names[:MAX_SHEETS]):
        source = _sheet(connection, book[name], f"sheet_{number}", name)
        if source is not None:
            yield source


def _sheet(connection: duckdb.DuckDBPyConnection, sheet: Foreign, table: str, name: str) -> DataSource | None:
    cells = 0
    note = ""
    rows: list[tuple[object, ...]] = []
    if not hasattr(sheet, "iter_rows"):
        return None
    for row in sheet.iter_rows(values_only=True):
        cells += len(row)
        if cells > MAX_CELLS:
            note = f"only its first {len(rows)} rows are read"
            break
        if any(value is not None for value in row):
            rows.append(row)
    if not rows:
        return None
    heads, body = rows[0], rows[1:]
    names = _unique(
        [str(head).strip() if head is not None else f"column_{i}" for i, head in enumerate(heads)]
    )
    arrow: Foreign = import_module("pyarrow")
    columns = {
        name: _array(arrow, [row[number] if number < len(row) else None for row in body])
        for number, name in enumerate(names)
    }
    connection.register(f"{table}_rows", arrow.table(columns))
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM {table}_rows")
    return DataSource(table, name, note)


def _array(arrow: Foreign, values: list[object]) -> Foreign:
    try:
        return arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        # One column of a table has one type; what is mixed is text.
        return arrow.array([None if value is None else str(value) for value in values])


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique: list[str] = []
    for name in names:
        count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
        unique.append(name if count == 1 else f"{name}_{count}")
    return unique


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
