"""What the sql tools return."""

from typing import Literal

from pydantic import Field

from mcp_servers.core._call import Output

__all__ = [
    "Column",
    "DatabaseInfo",
    "Databases",
    "Executed",
    "ForeignKey",
    "Problem",
    "Schema",
    "SchemaColumn",
    "SchemaTable",
]


class DatabaseInfo(Output):
    """One database."""

    id: str
    """What the other tools name it by."""
    engine: Literal["sqlite", "duckdb", "postgres"]
    """Whose SQL it speaks."""
    writable: bool
    """It can be changed: a copy that belongs to this session alone."""


class Databases(Output):
    """The databases there are."""

    databases: list[DatabaseInfo]
    """By id."""


class Column(Output):
    """One column of a result."""

    name: str
    """Its name."""
    type: str
    """Its type, in the words of the engine; in SQLite that of its first value."""


class Problem(Output):
    """Why the engine did not take a query."""

    type: str
    """The engine's name for it."""
    message: str
    """What the engine says, with the nearest right name of a table or column."""


class Executed(Output):
    """The answer to a query."""

    columns: list[Column] = Field(default_factory=list[Column])
    """The columns of the result."""
    rows: list[list[object]] = Field(default_factory=list[list[object]])
    """Its first rows; dates, exact numbers and NaN are text, a blob is `x'…'`."""
    row_count: int = 0
    """How many rows are here."""
    truncated: bool = False
    """There are more."""
    changed: int | None = None
    """How many rows the query changed; null if none or unknown."""
    error: Problem | None = None
    """Why the engine did not take the query; null if it did."""
    note: str = ""
    """What else there is to know."""


class SchemaColumn(Output):
    """One column of a table."""

    name: str
    """Its name."""
    type: str
    """Its declared type."""
    nullable: bool
    """It may be null."""


class ForeignKey(Output):
    """Columns that name rows of another table."""

    columns: list[str]
    """The columns here."""
    table: str
    """The other table."""
    referred_columns: list[str]
    """The columns there; none: its primary key."""


class SchemaTable(Output):
    """A table or view."""

    name: str
    """The name that queries use."""
    kind: Literal["table", "view"]
    """What it is."""
    columns: list[SchemaColumn]
    """Its columns, in order."""
    primary_key: list[str]
    """The columns of its primary key."""
    foreign_keys: list[ForeignKey]
    """What it refers to."""
    row_count: int | None
    """How many rows it has; null for a view, for more than a million, and where counting took long."""
    sample: list[list[object]] | None
    """Some of its rows, if they were asked for."""


class Schema(Output):
    """How a database is made."""

    database: str
    """Its id."""
    engine: Literal["sqlite", "duckdb", "postgres"]
    """Whose SQL it speaks."""
    tables: list[SchemaTable]
    """Its tables and views, or those that were asked for."""
    others: list[str]
    """Names of further ones, which are not described: ask for them by name."""
