"""Leases of seeds: each seed has one owner at a time, as long as the lease is renewed and the owner lives."""

import os
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

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

from agentflow.journal._schema import seeds


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


def claim(
    connection: Connection,
    run: int,
    owner: str,
    limit: int,
    now: ColumnElement[float],
    seconds: float,
    holders: set[str],
    *,
    held: Mapping[int, int],
    without: Sequence[int] = (),
    host: str | None = None,
) -> list[Claimed]:
    """Claim free seeds, lowest index first: unclaimed ones, and those whose owner is gone.

    Usually one statement: it claims nothing if a seed in its way belongs to an unknown process of this machine, which may
    have ended. Then the holders are read, and it is executed again.

    :param now: clock of the leases.
    :param holders: known processes of this machine that hold seeds; updated.
    :param held: seeds that are in work here, with their claims: their leases may have run out.
    :param host: name of the host that works on them.
    :param without: numbers of seeds to leave.
    """
    while True:
        values = {
            "of_run": run,
            "by": owner,
            "on": host or _host(),
            "seconds": seconds,
            "left_out": without,
            "held": list(held.items()),
            "holders": list(holders),
            "dead": [holder for holder in holders if has_died(holder)],
        }
        if taken := connection.execute(_claim_statement(now, limit), values).all():
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


def renew(
    connection: Connection,
    run: int,
    owner: str,
    held: Sequence[int],
    now: ColumnElement[float],
    seconds: float,
) -> None:
    """Extend an owner's leases on these seeds."""
    connection.execute(
        update(seeds)
        .where(_open(run), seeds.c.owner == owner, seeds.c.number.in_(held))
        .values(until=now + seconds)
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
