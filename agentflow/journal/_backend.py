"""What SQLite and Postgres do differently."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

__all__ = ["Backend", "EntryRow", "Trouble", "root_of"]

T = TypeVar("T")


class Trouble(Enum):
    """What an error of the database means for those who wait."""

    PASSING = auto()
    """It can be over soon: a lost connection, a server that starts."""
    FULL = auto()
    """There is no room."""
    BROKEN = auto()
    """Trying again would not help."""


class EntryRow(NamedTuple):
    """One entry, as it is written."""

    run: int
    seed: int
    key: str
    ordinal: int
    body: bytes
    claims: int
    """How often its seed was claimed when the page was opened: who claims it again takes it over."""


class Backend(Protocol):
    """One kind of database.

    What is asked and changed is written once, as a plain function of a connection. SQLite calls it in a thread of its
    own, where no statement costs the event loop anything; with Postgres it runs on the loop and waits there.
    """

    shown: str
    """Its address, without a password."""

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Ask something that changes nothing."""
        ...

    async def write(self, change: Callable[[Connection], T], *, durable: bool) -> T:
        """Change something in one transaction, for one task at a time; what fails leaves nothing behind.

        A durable one outlives a loss of power, with all before it.
        """
        ...

    async def insert(self, rows: Sequence[EntryRow]) -> int:
        """Write the entries whose key is new and whose seed was not claimed since; how many those were."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Be the only one that changes tables, until the transaction ends."""
        ...

    def now(self, connection: Connection) -> float:
        """The time that all who share the database agree on."""
        ...

    def trouble(self, error: BaseException) -> Trouble:
        """What that error means."""
        ...


def root_of(error: BaseException) -> BaseException:
    """The driver's own error, from beneath what SQLAlchemy made of it."""
    while (cause := getattr(error, "orig", None) or error.__cause__) is not None:
        error = cause
    return error
