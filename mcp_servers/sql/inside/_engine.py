"""Interface of the database engines, and their errors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

Row = Sequence[object]
"""Values of one row, as the driver returns them."""


@dataclass(frozen=True)
class DatabaseSpec:
    """The database to open, with its permissions and limits. Workers with equal ones are interchangeable."""

    engine: str
    """`sqlite`, `duckdb`, `postgres`, or `keeper`: the copies on a Postgres server."""
    target: str
    """A path, or the address of a server's database."""
    writable: bool
    """It is a writable copy of one session."""
    memory: int
    """Memory limit of a query in bytes."""
    file_bytes: int
    """Size limit of written files."""
    superuser: bool = False
    """Accept a privileged Postgres role."""
    owner: str = ""
    """Owner id of copies on a Postgres server: 12 hexadecimal digits."""
    folder: str = ""
    """Directory in which the worker may create files; empty for none."""


class SqlEngineError(Exception):
    """Error of an engine."""

    kind = "failed"
    """Error kind in the reply."""
    type = ""
    """Error type of the engine, if it rejected the query."""


class QueryRejected(SqlEngineError):
    """The engine rejected the query, with its own message."""

    kind = "rejected"

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type


class StatementDenied(SqlEngineError):
    """The statement is not allowed."""

    kind = "denied"


class DatabaseFilesReplaced(SqlEngineError):
    """The database has files that did not exist when the worker was confined; another worker can open them."""

    kind = "stale"

    def __init__(self) -> None:
        super().__init__("its files are replaced all the time")


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
    """One column of a table: a `SchemaColumn` of the results."""

    name: str
    type: str
    nullable: bool = True


@dataclass(slots=True)
class EngineForeignKey:
    """Columns that refer to rows of another table: a `ForeignKey` of the results."""

    columns: list[str]
    table: str
    referred_columns: list[str]


@dataclass(slots=True)
class EngineTable:
    """A table or view: a `SchemaTable` of the results."""

    name: str
    quoted: str
    """The name as an SQL identifier."""
    kind: str
    columns: list[EngineColumn] = field(default_factory=list[EngineColumn])
    primary_key: list[str] = field(default_factory=list[str])
    foreign_keys: list[EngineForeignKey] = field(default_factory=list[EngineForeignKey])


class SqlEngine:
    """An open database; the base class of all engines. All methods except `interrupt` are called by one thread."""

    def run(self, query: str) -> StatementResult:
        """Run one statement in its own transaction.

        :raises SqlEngineError: if it cannot be run.
        """
        raise SqlEngineError(query)

    def finish(self) -> None:
        """End the statement and commit its changes."""

    def abandon(self) -> None:
        """End the statement and roll back its changes."""

    def tidy(self) -> None:
        """Prepare for the next statement. It runs after the reply was sent."""

    def tables(self) -> list[EngineTable]:
        """Return all tables and views that a query can name."""
        return []

    def copy(self, target: str, source: str) -> None:
        """Copy the whole database. For a file, `source` is ignored: the open file is copied."""
        raise SqlEngineError("a database is copied by its server")

    def remove(self, target: str) -> None:
        """Remove a copy on a database server; file copies are removed by the caller."""
        raise SqlEngineError(f"{target} is not removed here")

    def interrupt(self) -> None:
        """Interrupt the running statement from another thread; the statement raises."""

    def close(self) -> None:
        """Close the database."""


def nearest(wrong: str, right: Sequence[str]) -> str:
    """`" Did you mean 'x'?"`, the names when they are few, or nothing."""
    by_lower = {name.lower(): name for name in right}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {by_lower[near[0]]!r}?"
    return f" There are: {', '.join(sorted(right))}." if 0 < len(right) <= 12 else ""
