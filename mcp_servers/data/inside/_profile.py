"""Statistics of tables: column types, missing and frequent values, sample rows; links from columns to keys."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, TypedDict

import duckdb

from mcp_servers.data.inside._sources import DataSource, tables_of
from mcp_servers.sql.inside._values import cell, quoted

MOST_COLUMNS = 100
ROWS = 200_000
SAMPLE = 3
TOP = 3
LONGEST = 200
"""Longest value in characters."""
KEY_VALUES = 20_000
"""Most values of a column to be used as a key."""
COMPARED = 500
"""Most values of a column to look up in the keys of other tables."""
LEAST_OVERLAP = 0.8
FEWEST_VALUES = 5
"""Minimum number of common values of columns with different names, because small numbers match by chance."""
MOST_LINKS = 50
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
    total = _one(connection, f"SELECT count(*) FROM {source.expression}")[0]
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
        "columns": [_column(connection, str(one[0]), str(one[1])) for one in described[:MOST_COLUMNS]],
        "sample": [[_short(value) for value in row[:MOST_COLUMNS]] for row in rows],
    }


def _column(connection: duckdb.DuckDBPyConnection, name: str, type: str) -> ColumnFacts:
    column = quoted(name)
    nested = any(mark in type for mark in _NESTED)
    if nested:
        (nulls,) = _one(connection, f"SELECT count(*) - count({column}) FROM looked_at")
        told: tuple[object, ...] = (nulls, None, None, None, None, 0)
    else:
        mean = f"avg({column})" if type.startswith(_NUMBERS) else "NULL"
        told = _one(
            connection,
            f"SELECT count(*) - count({column}), count(DISTINCT {column}), min({column}), max({column}), {mean}, "
            f"count({column}) FROM looked_at",
        )
    nulls, distinct, least, most, mean, present = told
    unique = not nested and distinct == present and 0 < int(str(present)) <= KEY_VALUES
    values = [] if nested or type.startswith(_NO_KEYS) else _fingerprints(connection, column, unique=unique)
    return {
        "name": name[:LONGEST],
        "type": type[:LONGEST],
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
    found = connection.execute(
        f"SELECT {column}, count(*) AS n FROM looked_at WHERE {column} IS NOT NULL GROUP BY ALL "
        f"ORDER BY n DESC, {column} LIMIT {TOP}"
    ).fetchall()
    return [{"value": _short(value), "count": int(count)} for value, count in found]


def _fingerprints(connection: duckdb.DuckDBPyConnection, column: str, *, unique: bool) -> list[str]:
    found = connection.execute(
        f"SELECT DISTINCT CAST({column} AS VARCHAR) FROM looked_at WHERE {column} IS NOT NULL "
        f"LIMIT {KEY_VALUES if unique else COMPARED}"
    ).fetchall()
    return [
        hashlib.blake2b(str(one[0]).strip().encode("utf-8", "replace"), digest_size=6).hexdigest()
        for one in found
    ]


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[object, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


def _short(value: object) -> object:
    shown = cell(value)
    return f"{shown[:LONGEST]}…" if isinstance(shown, str) and len(shown) > LONGEST else shown


def links(tables: list[Named]) -> list[dict[str, Any]]:
    """Return the most likely links, best first."""
    found = sorted(_links(tables), key=lambda link: (-link["overlap"], link["file"], link["column"]))
    return found[:MOST_LINKS]


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
                if overlap >= LEAST_OVERLAP and (alike or _telling(column, key)):
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


def _telling(column: ColumnFacts, key: ColumnFacts) -> bool:
    texts = column["type"] == key["type"] == "VARCHAR"
    return texts and len(column["values"]) >= FEWEST_VALUES


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
