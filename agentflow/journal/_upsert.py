"""Inserts that tolerate existing rows, for both databases."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite


def put(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the one with its primary key."""
    connection.execute(_put(connection.dialect.name, table, tuple(row)), row)


def put_new(connection: Connection, table: Table, row: dict[str, Any], *, unique: str) -> Insert:
    """Insert a row unless one has the same value in that column."""
    insert = _insert(connection.dialect.name, table).values(row)
    return insert.on_conflict_do_nothing(index_elements=[unique])


@cache
def _put(dialect: str, table: Table, names: tuple[str, ...]) -> Insert:
    """Build the statement once: building costs several times as much as executing."""
    insert = _insert(dialect, table).values({name: bindparam(name) for name in names})
    keys = [column.name for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in names if name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)
