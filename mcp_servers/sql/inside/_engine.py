"""What every engine can do, and how it says what went wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol, TypedDict

__all__ = [
    "Answer",
    "Column",
    "Engine",
    "ForeignKey",
    "Place",
    "Refused",
    "Rejected",
    "Row",
    "Table",
    "Trouble",
    "Unavailable",
    "nearest",
]

Row = Sequence[object]
"""The values of one row, as the driver gives them."""


class Place(TypedDict):
    """Which database, and what may be done with it."""

    engine: str
    """`sqlite`, `duckdb`, `postgres`, or `keeper`: the copies on a Postgres server."""
    target: str
    """A path, or the address of a server's database."""
    writable: bool
    """It may be changed: it is a copy that belongs to one session."""
    memory: int
    """Bytes that the engine may use."""
    superuser: bool
    """A role of the server that may do anything is good enough."""
    file_bytes: int
    """The largest file that may be written."""
    owner: str
    """Who makes copies on a Postgres server: 12 hexadecimal digits."""


class Trouble(Exception):
    """Something that is no answer."""

    kind = "failed"
    """What it is called in the reply."""


class Rejected(Trouble):
    """The engine did not take the query: its own words."""

    kind = "rejected"

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type
        """The engine's name for it."""


class Refused(Trouble):
    """It is not allowed."""

    kind = "denied"


class Unavailable(Trouble):
    """The database can't be reached, or what it needs is not installed."""

    kind = "unavailable"


@dataclass(slots=True)
class Answer:
    """What a query gives, while it is read."""

    columns: list[tuple[str, str]]
    """Name and type of each; a type may be known only after the rows."""
    rows: Iterator[Row]
    """The rows; reading them runs the query."""
    changed: Callable[[], int | None] = lambda: None
    """Rows that were changed, once the rows are read; `None`: it changed nothing, or the engine can't tell."""


@dataclass(slots=True)
class Column:
    """One column of a table."""

    name: str
    """Its name."""
    type: str
    """Its declared type."""
    nullable: bool = True
    """It may be null."""


@dataclass(slots=True)
class ForeignKey:
    """Columns that name rows of another table."""

    columns: list[str]
    """The columns here."""
    table: str
    """The other table."""
    referred_columns: list[str]
    """Its columns."""


@dataclass(slots=True)
class Table:
    """A table or view."""

    name: str
    """The name that queries use."""
    quoted: str
    """The same, fit to be put into a query."""
    kind: str
    """`table` or `view`."""
    columns: list[Column] = field(default_factory=list[Column])
    """Its columns, in order."""
    primary_key: list[str] = field(default_factory=list[str])
    """The columns of its primary key."""
    foreign_keys: list[ForeignKey] = field(default_factory=list[ForeignKey])
    """Its foreign keys."""


class Engine(Protocol):
    """One open database. All but `interrupt` is called by one thread."""

    def run(self, query: str) -> Answer:
        """Run one statement on its own, as a transaction of its own.

        :raises Trouble: if it can't be.
        """
        ...

    def finish(self) -> None:
        """End the statement: keep what it changed if all went well until here. What it left open ends."""
        ...

    def abandon(self) -> None:
        """End the statement, and keep nothing of it."""
        ...

    def tidy(self) -> None:
        """Make ready for the next statement. Nobody waits for it: the answer is out."""
        ...

    def tables(self) -> list[Table]:
        """Every table and view that a query can name."""
        ...

    def copy(self, target: str, source: str) -> None:
        """Make an independent copy of the whole database. A file is the open one, whatever `source` says."""
        ...

    def remove(self, target: str) -> None:
        """Remove a copy that a server holds; files are removed by whoever asked for them."""
        ...

    def interrupt(self) -> None:
        """End what runs, from another thread; it raises there."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


def nearest(wrong: str, right: Sequence[str]) -> str:
    """`" Did you mean 'x'?"`, the names when they are few, or nothing."""
    by_lower = {name.lower(): name for name in right}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {by_lower[near[0]]!r}?"
    return f" There are: {', '.join(sorted(right))}." if 0 < len(right) <= 12 else ""
