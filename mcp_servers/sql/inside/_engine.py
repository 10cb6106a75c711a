"""Interface of the database engines, and their errors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol, TypedDict

Row = Sequence[object]
"""Values of one row, as the driver returns them."""


class DatabaseSpec(TypedDict):
    """The database to open, and its permissions and limits."""

    engine: str
    """`sqlite`, `duckdb`, `postgres`, or `keeper`: the copies on a Postgres server."""
    target: str
    """A path, or the address of a server's database."""
    writable: bool
    """It is a writable copy of one session."""
    memory: int
    """Memory limit of the engine in bytes."""
    superuser: bool
    """Accept a privileged Postgres role."""
    file_bytes: int
    """Size limit of written files."""
    owner: str
    """Owner id of copies on a Postgres server: 12 hexadecimal digits."""


class SqlEngineError(Exception):
    """Error of an engine."""

    kind = "failed"
    """Error kind in the reply."""


class QueryRejected(SqlEngineError):
    """The engine rejected the query, with its own message."""

    kind = "rejected"

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type
        """Error type of the engine."""


class StatementDenied(SqlEngineError):
    """The statement is not allowed."""

    kind = "denied"


class DatabaseUnavailable(SqlEngineError):
    """The database cannot be reached, or its driver is not installed."""

    kind = "unavailable"


@dataclass(slots=True)
class StatementResult:
    """Result of a query, while it is being read."""

    columns: list[tuple[str, str]]
    """Name and type of each column; a type may be known only after reading the rows."""
    rows: Iterator[Row]
    """The rows; reading them runs the query."""
    changed: Callable[[], int | None] = lambda: None
    """Number of changed rows, after reading the rows; `None` if none or unknown."""


@dataclass(slots=True)
class EngineColumn:
    """One column of a table."""

    name: str
    """Its name."""
    type: str
    """Its declared type."""
    nullable: bool = True
    """It may be null."""


@dataclass(slots=True)
class EngineForeignKey:
    """Columns that name rows of another table."""

    columns: list[str]
    """The columns here."""
    table: str
    """The other table."""
    referred_columns: list[str]
    """Its columns."""


@dataclass(slots=True)
class EngineTable:
    """A table or view."""

    name: str
    """The name that queries use."""
    quoted: str
    """The same, fit to be put into a query."""
    kind: str
    """`table` or `view`."""
    columns: list[EngineColumn] = field(default_factory=list[EngineColumn])
    """Its columns, in order."""
    primary_key: list[str] = field(default_factory=list[str])
    """The columns of its primary key."""
    foreign_keys: list[EngineForeignKey] = field(default_factory=list[EngineForeignKey])
    """Its foreign keys."""


class SqlEngine(Protocol):
    """An open database. All methods except `interrupt` are called by one thread."""

    def run(self, query: str) -> StatementResult:
        """Run one statement in its own transaction.

        :raises Trouble: if it can't be.
        """
        ...

    def finish(self) -> None:
        """End the statement and commit its changes."""
        ...

    def abandon(self) -> None:
        """End the statement and roll back its changes."""
        ...

    def tidy(self) -> None:
        """Prepare for the next statement. It runs after the reply was sent."""
        ...

    def tables(self) -> list[EngineTable]:
        """Return all tables and views that a query can name."""
        ...

    def copy(self, target: str, source: str) -> None:
        """Copy the whole database. For a file, `source` is ignored: the open file is copied."""
        ...

    def remove(self, target: str) -> None:
        """Remove a copy on a database server; file copies are removed by the caller."""
        ...

    def interrupt(self) -> None:
        """Interrupt the running statement from another thread; the statement raises."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


def nearest(wrong: str, right: Sequence[str]) -> str:
    """`" Did you mean 'x'?"`, the names when they are few, or nothing."""
    by_lower = {name.lower(): name for name in right}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {by_lower[near[0]]!r}?"
    return f" There are: {', '.join(sorted(right))}." if 0 < len(right) <= 12 else ""
