"""Inserting what may be there already; both databases write it alike."""

from typing import Any

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["put", "put_new"]


def put(connection: Connection, table: Table, row: dict[str, Any]) -> Insert:
    """Insert a row, or replace the one with its primary key."""
    insert = _insert(connection, table).values(row)
    keys = [column.name for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in row if name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def put_new(connection: Connection, table: Table, row: dict[str, Any], *, unique: str) -> Insert:
    """Insert a row unless there is one with the same value in that column."""
    return _insert(connection, table).values(row).on_conflict_do_nothing(index_elements=[unique])


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    return dialect.insert(table)
