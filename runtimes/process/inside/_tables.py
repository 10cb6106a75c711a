"""Data frames and query results as bounded, structured tables, and SQL by DuckDB. Runs inside a session.

A table is a plain dictionary: `columns` (each with `name` and `dtype`), `rows` (lists of JSON values, up to the limit),
`total_rows` (`None` if counting would need to run a query again) and `total_columns`.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, TypeAlias, TypeGuard

Foreign: TypeAlias = Any
"""Object of a library that is not imported here, or of user code; its attributes are looked up dynamically."""

TABLE_MIME = "application/vnd.agentflow.table+json"
"""MIME type of a table shown by a run."""

ROWS = 200
COLUMNS = 200
TEXT = 2_000
ITEMS = 50
DEPTH = 4
WIDEST_INTEGER = 63

_KINDS = (
    ("pandas", "DataFrame"),
    ("pandas", "Series"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
    ("duckdb", "DuckDBPyRelation"),
)


def table_of(value: object) -> dict[str, object] | None:
    """Return the first rows of a data frame, series, Arrow table or DuckDB relation; `None` for anything else."""
    match _kind(value):
        case ("pandas", "DataFrame"):
            return _from_pandas(value)
        case ("pandas", "Series"):
            series: Foreign = value
            return _from_pandas(series.to_frame("value" if series.name is None else series.name))
        case ("pyarrow", _):
            return _from_arrow(value)
        case ("duckdb", _):
            return _from_duckdb(value)
        case _:
            return None


def build_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]], limit: int, total: int | None
) -> dict[str, object]:
    """Build a table of at most `limit` rows. If there are no more rows, `total` is their number."""
    first = list(islice(rows, limit + 1))
    if total is None and len(first) <= limit:
        total = len(first)
    return {
        "columns": [{"name": name, "dtype": dtype} for name, dtype in columns[:COLUMNS]],
        "rows": [[_cell(value) for value in row[:COLUMNS]] for row in first[:limit]],
        "total_rows": total,
        "total_columns": len(columns),
    }


def _kind(value: object) -> tuple[str, str] | None:
    for module, name in _KINDS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return module, name
    return None


def _from_pandas(frame: Foreign) -> dict[str, object]:
    index = frame.index
    counted = type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
    head = frame.iloc[:ROWS, :COLUMNS]
    if not counted:
        head = head.reset_index(allow_duplicates=True)
    columns = [(str(name), str(dtype)) for name, dtype in zip(head.columns, head.dtypes, strict=True)]
    table = build_table(columns, head.itertuples(index=False, name=None), ROWS, len(frame))
    return {**table, "total_columns": frame.shape[1] + (0 if counted else index.nlevels)}


def _from_arrow(table: Foreign) -> dict[str, object]:
    columns = [(str(field.name), str(field.type)) for field in table.schema]
    parts = [column.to_pylist() for column in table.slice(0, ROWS).columns[:COLUMNS]]
    rows = list(zip(*parts, strict=True))
    return {**build_table(columns, rows, ROWS, None), "total_rows": table.num_rows}


def _from_duckdb(relation: Foreign) -> dict[str, object]:
    columns = list(zip(map(str, relation.columns), map(str, relation.types), strict=True))
    return build_table(columns, relation.limit(ROWS + 1).fetchall(), ROWS, None)


def _cell(value: Foreign, depth: int = 0) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= WIDEST_INTEGER else _cut(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None if math.isnan(value) else str(float(value))
    if isinstance(value, Decimal):
        exact = value.is_finite() and Decimal(repr(float(value))) == value
        return float(value) if exact else str(value)
    if isinstance(value, bytes | bytearray):
        return _cut(value[: TEXT // 2].hex(" "))
    return _nested_cell(value, depth) if depth < DEPTH else _cut(str(value))


def _nested_cell(value: Foreign, depth: int) -> object:
    if is_mapping(value):
        pairs = islice(value.items(), ITEMS)
        return {_cut(str(key)): _cell(item, depth + 1) for key, item in pairs}
    if _is_collection(value):
        return [_cell(item, depth + 1) for item in islice(value, ITEMS)]
    if type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if type(value).__module__ == "numpy":
        plain = value.tolist()
        if type(plain) is not type(value):
            return _cell(plain, depth + 1)
    return _cut(str(value))


def is_mapping(value: object) -> TypeGuard[dict[object, object]]:
    """Return whether a value is a dictionary."""
    return isinstance(value, dict)


def _is_collection(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, list | tuple | set | frozenset)


def _cut(text: str) -> str:
    clean = str(text) if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"
    return clean.encode("utf-8", "backslashreplace").decode()


_BATCH_ROWS = 1024
_DUCKDB_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
}


def run_sql(query: str, rows: int, namespace: Mapping[str, object]) -> dict[str, object]:
    """Run a query; return its result as a table of at most `rows` rows.

    Queries name files by path (`FROM 'sales.csv'`), data frames and Arrow tables by variable. Each call uses a new
    in-memory database with access to the session's files only.
    """
    import duckdb

    # One thread and no open connection: a session with live threads could not be forked.
    with duckdb.connect(":memory:", config=dict(_DUCKDB_CONFIG)) as connection:
        _register(connection, query, namespace)
        connection.execute(query)
        columns = [(str(column[0]), str(column[1])) for column in connection.description or ()]
        return build_table(columns, _fetched(connection), rows, None)


def _register(connection: Foreign, query: str, namespace: Mapping[str, object]) -> None:
    for name in set(re.findall(r"\w+", query)):
        value: Foreign = namespace.get(name)
        if _kind(value) is not None:
            if type(value).__name__ == "Series":
                value = value.to_frame(value.name or "value")
            elif type(value).__name__ == "DuckDBPyRelation":
                value = value.to_arrow_table()
            connection.register(name, value)


def _fetched(connection: Foreign) -> Iterator[tuple[object, ...]]:
    while batch := connection.fetchmany(_BATCH_ROWS):
        yield from batch
