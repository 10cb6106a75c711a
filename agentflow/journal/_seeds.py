"""Seeds of a run: each is added once and in order, and has one owner at a time, as long as its lease is renewed and its owner lives."""

import os
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import ConfigurationError
from agentflow.journal._database import runs, seeds
from agentflow.trace import Seed


class NewSeed(Struct, frozen=True):
    """Seed to be added to a run."""

    content: str
    """The topic to explore, in words."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tool arguments that the seed fixes."""
    id: str | None = None
    """Its id; by default `seed_` and its number."""


def add_seeds(
    connection: Connection, run: int, wanted: Sequence[NewSeed], origin: str, *, further: bool = False
) -> list[Seed]:
    """Add the missing seeds of a list; return the whole list as stored.

    :param further: if the list is another one than before, add those of its seeds that the run does not have.
    :raises ConfigurationError: if the list began differently before, or an id is taken or invalid.
    """
    # A writer locks the run, so that indices and ids are assigned by one at a time.
    connection.execute(select(runs.c.id).where(runs.c.id == run).with_for_update())
    stored = _stored_seeds(connection, run, origin)
    difference = _difference(stored, wanted, origin)
    if difference and not further:
        raise ConfigurationError(difference)
    if difference:
        every = {_content(seed) for seed in _stored_seeds(connection, run)}
        wanted = [new for new in wanted if _content(new) not in every]
        stored, origin = [], f"{origin} {sha256(b''.join(map(_content, wanted))).hexdigest()[:16]}"
    count = connection.scalar(select(func.count()).where(seeds.c.run == run)) or 0
    tail = wanted[len(stored) :]
    written = [_encoded(new, index) for index, new in enumerate(tail, start=count)]
    # Normalise as a reader will see it: the adder and the reader of a seed must agree.
    added = [msgspec.json.decode(body, type=Seed) for body in written]
    _check_ids(connection, run, added)
    if added:
        connection.execute(
            seeds.insert(),
            [
                {
                    "run": run,
                    "number": seed.index,
                    "name": seed.id,
                    "origin": origin,
                    "place": index,
                    "body": body,
                    "done": False,
                    "claims": 0,
                }
                for index, (seed, body) in enumerate(zip(added, written, strict=True), start=len(stored))
            ],
        )
    return stored + added


def _stored_seeds(connection: Connection, run: int, origin: str | None = None) -> list[Seed]:
    """Return the seeds of a list, or all of the run."""
    query = select(seeds.c.body).where(seeds.c.run == run).order_by(seeds.c.place)
    if origin is not None:
        query = query.where(seeds.c.origin == origin)
    return [msgspec.json.decode(body, type=Seed) for body in connection.scalars(query)]


def _content(seed: Seed | NewSeed) -> bytes:
    return msgspec.json.encode([seed.content, seed.kwargs], order="deterministic")


def _difference(stored: Sequence[Seed], wanted: Sequence[NewSeed], origin: str) -> str:
    """Return the first difference of a list from the known one and the remedy; empty if it continues the known one."""
    fix = "go back to the old list (more may follow at its end), or choose another run_name"
    if len(wanted) < len(stored):
        return f"seeds ({origin}): {len(stored)} were there, now {len(wanted)} are; {fix}"
    for index, (old, new) in enumerate(zip(stored, wanted, strict=False), start=1):
        # Compare the encoded form: decoding turns a tuple into a list.
        kwargs = msgspec.json.decode(msgspec.json.encode(new.kwargs))
        if (old.content, old.kwargs, old.id) != (new.content, kwargs, _id(new, old.index)):
            return f"seeds ({origin}): number {index} ({old.id}) was another one before; {fix}"
    return ""


def _check_ids(connection: Connection, run: int, added: Sequence[Seed]) -> None:
    seen: set[str] = set()
    if added:
        seen.update(connection.scalars(select(seeds.c.name).where(seeds.c.run == run)))
    for seed in added:
        if not seed.id.isprintable() or not seed.id.strip():
            raise ConfigurationError(
                f"seeds: the id {seed.id!r} can't be used; write one line of visible signs"
            )
        if seed.id in seen:
            raise ConfigurationError(f"seeds: two have the id {seed.id!r}; give each its own")
        seen.add(seed.id)


def _id(new: NewSeed, index: int) -> str:
    return f"seed_{index + 1:03d}" if new.id is None else new.id


def _encoded(new: NewSeed, index: int) -> bytes:
    seed = Seed(index=index, id=_id(new, index), content=new.content, kwargs=new.kwargs)
    try:
        return msgspec.json.encode(seed)
    except (TypeError, *DECODE_ERRORS) as error:
        raise ConfigurationError(
            f"seeds: {seed.id} can't be written as JSON ({decode_reason(error)}); mend it"
        ) from error


class Counts(NamedTuple):
    """Numbers of a run's seeds by state."""

    waiting: int
    """Unclaimed seeds."""
    leased: int
    """Claimed seeds, including those whose lease has just run out."""
    done: int
    """Finished seeds."""


class Claimed(NamedTuple):
    """A claimed seed."""

    body: bytes
    """The seed."""
    claims: int
    """Number of claims so far, including this one."""


class LeaseTerms(NamedTuple):
    """Terms of the leases of a process."""

    clock: ColumnElement[float]
    """Clock of the leases."""
    seconds: float
    """Seconds for which a seed is held without renewal."""
    host: str | None = None
    """Name of the host that works on the seeds; `None`: the system's."""


def claim(
    connection: Connection,
    run: int,
    owner: str,
    limit: int,
    terms: LeaseTerms,
    holders: set[str],
    *,
    held: Mapping[int, int],
    without: Sequence[int] = (),
) -> list[Claimed]:
    """Claim free seeds, lowest index first: unclaimed ones, and those whose owner is gone.

    Usually one statement: it claims nothing if a seed in its way belongs to an unknown process of this machine, which may
    have ended. Then the holders are read, and it is executed again.

    :param holders: known processes of this machine that hold seeds; updated.
    :param held: seeds that are in work here, with their claims: their leases may have run out.
    :param without: numbers of seeds to leave.
    """
    while True:
        values = {
            "of_run": run,
            "by": owner,
            "on": terms.host or _host(),
            "seconds": terms.seconds,
            "left_out": without,
            "held": list(held.items()),
            "holders": list(holders),
            "dead": [holder for holder in holders if has_died(holder)],
        }
        if taken := connection.execute(_claim_statement(terms.clock, limit), values).all():
            return [Claimed(body, claims) for _, body, claims in sorted(taken)]
        before = set(holders)
        holders.clear()
        owners = select(seeds.c.owner).where(seeds.c.run == run, _of_this_machine()).distinct()
        holders.update(filter(None, connection.scalars(owners)))
        if holders <= before:
            return []


@cache
def _claim_statement(now: ColumnElement[float], limit: int) -> ReturningUpdate[int, bytes, int]:
    """Build the statement once: building costs several times as much as executing.

    The limit is a constant of it: Postgres keeps a plan that does not read the whole table only if it knows that few rows are
    needed.
    """
    of_run = seeds.c.run == bindparam("of_run")
    unknown = and_(
        _of_this_machine(), seeds.c.until > now, seeds.c.owner.not_in(bindparam("holders", expanding=True))
    )
    free = (
        select(seeds.c.number, unknown.label("unknown"))
        .where(
            of_run,
            ~seeds.c.done,
            seeds.c.number.not_in(bindparam("left_out", expanding=True)),
            or_(
                seeds.c.owner.is_(None),
                _run_out(now),
                seeds.c.owner.in_(bindparam("dead", expanding=True)),
                unknown,
            ),
        )
        .order_by(seeds.c.number)
        .limit(literal_column(str(limit)))
        .with_for_update(skip_locked=True)
        # Postgres evaluates it once, because it locks rows.
        .cte("free")
    )
    return (
        update(seeds)
        .where(
            of_run,
            seeds.c.number.in_(select(free.c.number)),
            ~select(free.c.number).where(free.c.unknown).exists(),
        )
        .values(
            owner=bindparam("by"),
            until=now + bindparam("seconds", type_=Double),
            claims=seeds.c.claims + 1,
            host=bindparam("on"),
        )
        .returning(seeds.c.number, seeds.c.body, seeds.c.claims)
    )


def _of_this_machine() -> ColumnElement[bool]:
    return seeds.c.owner.startswith(f"{_process_scope()}:", autoescape=True)


def renew(connection: Connection, run: int, owner: str, held: Sequence[int], terms: LeaseTerms) -> None:
    """Extend an owner's leases on these seeds."""
    connection.execute(
        update(seeds)
        .where(_open(run), seeds.c.owner == owner, seeds.c.number.in_(held))
        .values(until=terms.clock + terms.seconds)
    )


def release(connection: Connection, run: int, owner: str) -> None:
    """Release an owner's unfinished seeds."""
    connection.execute(update(seeds).where(_open(run), seeds.c.owner == owner).values(owner=None, until=None))


def release_one(connection: Connection, run: int, seed: int, claims: int) -> None:
    """Release a seed, unless somebody else has claimed it since."""
    connection.execute(
        update(seeds)
        .where(_open(run), seeds.c.number == seed, seeds.c.claims == claims)
        .values(owner=None, until=None)
    )


def count_open(connection: Connection, run: int, numbers: Sequence[int]) -> int:
    """Count the unfinished ones among these seeds."""
    number = connection.scalar(
        select(func.count()).select_from(seeds).where(_open(run), seeds.c.number.in_(numbers))
    )
    return number or 0


def count(connection: Connection, run: int) -> Counts:
    """Count the seeds by state."""
    rows = connection.execute(
        select(seeds.c.done, seeds.c.owner.is_not(None), func.count())
        .where(seeds.c.run == run)
        .group_by(seeds.c.done, seeds.c.owner.is_not(None))
    )
    waiting = leased = done = 0
    for finished, owned, number in rows:
        if finished:
            done += number
        elif owned:
            leased += number
        else:
            waiting += number
    return Counts(waiting, leased, done)


def count_by_host(connection: Connection, run: int) -> dict[str, Counts]:
    """Count the claimed and finished seeds by the host that claimed them last."""
    counts: dict[str, Counts] = {}
    rows = connection.execute(
        select(seeds.c.host, seeds.c.done, seeds.c.owner.is_not(None), func.count())
        .where(seeds.c.run == run, seeds.c.host.is_not(None))
        .group_by(seeds.c.host, seeds.c.done, seeds.c.owner.is_not(None))
        .order_by(seeds.c.host)
    )
    for host, finished, owned, number in rows:
        leased, done = (0, number) if finished else (number if owned else 0, 0)
        before = counts.get(host, Counts(0, 0, 0))
        counts[host] = Counts(0, before.leased + leased, before.done + done)
    return counts


def _open(run: int) -> ColumnElement[bool]:
    return and_(seeds.c.run == run, ~seeds.c.done)


def _run_out(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition that a lease is over, and its seed not in work here."""
    # No lease is twice as long: the clock was set back.
    over = or_(seeds.c.until <= now, seeds.c.until > now + 2 * bindparam("seconds", type_=Double))
    return and_(over, tuple_(seeds.c.number, seeds.c.claims).not_in(bindparam("held", expanding=True)))


def this_process() -> str:
    """Return this process's name as an owner; no earlier or later process has the same name.

    See docs/journal.md for an example.
    """
    pid = os.getpid()
    return f"{_process_scope()}:{pid}:{_started(pid)}"


def has_died(owner: str) -> bool:
    """Return true if an owner was a process of this machine and has ended. Owners elsewhere count as alive.

    Example::

        assert not has_died(this_process())
    """
    return owner.partition(":")[0] == _process_scope() and not is_alive_here(owner)


def is_alive_here(owner: str) -> bool:
    """Return true if an owner is a living process of this machine.

    Example::

        assert is_alive_here(this_process())
    """
    scope, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    is_here = scope == _process_scope() and pid.isascii() and pid.isdecimal() and len(pid) < 10
    return is_here and bool(started) and _started(int(pid)) == started


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _process_scope() -> str:
    """Return the scope in which process ids are unique: this boot of this machine, this pid namespace."""
    parts = [_host().replace(":", "-")]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        # Outside Linux the host name is the best scope available.
        pass
    return "/".join(parts)


def _started(pid: int) -> str:
    """Return the start time of a process; empty if there is none or it is a zombie."""
    try:
        # The program's name may contain anything; it ends at the last parenthesis.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        return "" if Path("/proc/self").exists() or not _answers(pid) else "alive"


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
