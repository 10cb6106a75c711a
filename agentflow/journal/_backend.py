"""What SQLite and Postgres do differently."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["Backend", "EntryRow", "Trouble", "root_of"]


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
    """One kind of database."""

    shown: str
    """Its address, without a password."""

    def engine(self) -> AsyncEngine:
        """A new engine for it."""
        ...

    async def prepare(self) -> None:
        """Do what must be done before the first connection."""
        ...

    async def begin(self, connection: AsyncConnection, *, durable: bool) -> None:
        """Begin a transaction that writes; a durable one outlives a loss of power, with all before it."""
        ...

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """Be the only one that changes tables, until the transaction ends."""
        ...

    async def now(self, connection: AsyncConnection) -> float:
        """The time that all who share the database agree on."""
        ...

    async def insert(self, connection: AsyncConnection, rows: Sequence[EntryRow]) -> int:
        """Write the entries whose key is new and whose seed was not claimed since, and commit; how many those were."""
        ...

    def trouble(self, error: BaseException) -> Trouble:
        """What that error means."""
        ...


def root_of(error: BaseException) -> BaseException:
    """The driver's own error, from beneath what SQLAlchemy made of it."""
    while (cause := getattr(error, "orig", None) or error.__cause__) is not None:
        error = cause
    return error
