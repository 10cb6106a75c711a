"""Results of the sql tools."""

from typing import Literal

from pydantic import Field

from mcp_servers.core._call import Output


class DatabaseInfo(Output):
    """One database."""

    id: str
    """Id of the database, as other tools take it."""
    engine: Literal["sqlite", "duckdb", "postgres"]
    """Engine, which determines the SQL dialect."""
    writable: bool
    """The session may change its own copy of it."""


class Databases(Output):
    """The configured databases."""

    databases: list[DatabaseInfo]
    """Databases, sorted by id."""


class ResultColumn(Output):
    """One column of a result."""

    name: str
    """Name of the column."""
    type: str
    """Type in the engine's terms; in SQLite that of the first value."""


class SqlProblem(Output):
    """Reason why the engine rejected a query."""

    type: str
    """Error type of the engine."""
    message: str
    """Message of the engine, with the most similar name of a table or column."""


class Executed(Output):
    """Result of a query."""

    columns: list[ResultColumn] = Field(default_factory=list[ResultColumn])
    """Columns of the result."""
    rows: list[list[object]] = Field(default_factory=list[list[object]])
    """First rows; dates, exact numbers and NaN are text, a blob is `x'…'`."""
    row_count: int = 0
    """Number of returned rows."""
    truncated: bool = False
    """There are more rows."""
    changed: int | None = None
    """Number of changed rows; null if none or unknown."""
    error: SqlProblem | None = None
    """Reason if the engine rejected the query, else null."""
    note: str = ""
    """Note on omitted rows; often empty."""


class SchemaColumn(Output):
    """One column of a table."""

    name: str
    """Name of the column."""
    type: str
    """Declared type."""
    nullable: bool
    """The column accepts null."""


class ForeignKey(Output):
    """Columns that refer to rows of another table."""

    columns: list[str]
    """Referring columns."""
    table: str
    """Referred table."""
    referred_columns: list[str]
    """Referred columns; empty for the primary key."""


class SchemaTable(Output):
    """A table or view."""

    name: str
    """Name to use in queries."""
    kind: Literal["table", "view"]
    """Table or view."""
    columns: list[SchemaColumn]
    """Columns in order."""
    primary_key: list[str]
    """Columns of the primary key."""
    foreign_keys: list[ForeignKey]
    """References to other tables."""
    row_count: int | None
    """Number of rows; null for a view, for more than a million rows, or if counting takes too long."""
    sample: list[list[object]] | None
    """Sample rows, if requested."""


class Schema(Output):
    """Tables of a database."""

    database: str
    """Id of the database."""
    engine: Literal["sqlite", "duckdb", "postgres"]
    """Engine, which determines the SQL dialect."""
    tables: list[SchemaTable]
    """Tables and views, or the requested ones."""
    others: list[str]
    """Names of other tables, which are described on request."""
