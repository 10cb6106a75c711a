"""Interface of a database, with the differences between SQLite and Postgres."""

import zlib
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection

from agentflow._folder_files import unpack

T = TypeVar("T")
_PACKED_BYTES: Final = 4096
"""A compression costs 70 us at least, and saves half of a short text."""
_COMPRESSION: Final = 1
"""Level: a higher one takes longer and saves a tenth."""


class DatabaseFailure(Enum):
    """Consequence of a database error for the callers that wait."""

    PASSING = auto()
    """It may pass soon: a lost connection, a server that starts."""
    FULL = auto()
    """The disk is full."""
    DAMAGED = auto()
    """The stored data is damaged."""
    BROKEN = auto()
    """A retry would not help."""


class EntryRow(NamedTuple):
    """One entry, encoded for writing."""

    run: int
    seed: int
    key: str
    ordinal: int
    body: bytes
    claims: int
    """Number of claims of its seed when the page was opened; a later claim takes the page over."""


class BlobRow(NamedTuple):
    """One blob that is written with the next entries."""

    run: int
    hash: str
    data: bytes
    is_json: bool
    """It is JSON, which is compressed if that pays; see `unpacked_json`."""

    @property
    def stored(self) -> tuple[int, str, bytes]:
        """Run, hash and bytes as they are stored."""
        packs = self.is_json and len(self.data) >= _PACKED_BYTES
        return self.run, self.hash, zlib.compress(self.data, _COMPRESSION) if packs else self.data


def unpacked_json(data: bytes) -> bytes:
    """Return JSON from its stored form.

    :raises ValueError: if it is something else.
    """
    if data.startswith(b"{"):
        return data
    return unpack(data)


class DatabaseBackend(Protocol):
    """One kind of database.

    Each query and change is written once, as a plain function of a connection. SQLite calls it in a worker thread, so
    that no statement blocks the event loop; with Postgres it runs on the loop and awaits.
    """

    shown: str
    """Its URL, without a password."""

    @property
    def file(self) -> Path | None:
        """Its file, if it is one."""
        ...

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query that changes nothing."""
        ...

    async def write(self, change: Callable[[Connection], T], *, durable: bool, atomic: bool) -> T:
        """Run a change in one transaction, one at a time; a failed change leaves nothing behind.

        A durable change survives a power loss, together with everything before it. Each statement of a change that is
        not atomic may be a transaction by itself, which saves round trips.
        """
        ...

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow]) -> int:
        """Write the entries whose key is new and whose seed was not claimed since; return their number.

        :param blobs: blobs for the same transaction; known ones are left out.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Take the exclusive lock for changing tables, until the transaction ends."""
        ...

    def now(self, connection: Connection) -> float:
        """Return the time that all users of the database agree on."""
        ...

    def clock(self) -> ColumnElement[float]:
        """Return that time as a part of any statement, read when it is executed."""
        ...

    def trouble(self, error: BaseException) -> DatabaseFailure:
        """Classify a database error."""
        ...


def root_of(error: BaseException) -> BaseException:
    """Return the driver's error below SQLAlchemy's wrapper."""
    while (cause := getattr(error, "orig", None) or error.__cause__) is not None:
        error = cause
    return error
