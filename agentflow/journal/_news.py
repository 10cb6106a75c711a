"""News of a journal since a cursor, without gaps: for readers that poll it."""

from typing import NamedTuple

import msgspec
from msgspec import Struct, field
from sqlalchemy import Connection, func, or_, select, text

from agentflow._decoding import DECODE_ERRORS
from agentflow.journal._leases import count
from agentflow.journal._schema import entries, seeds

_MANY_NEWS = 20_000
_MANY_STATES = 1_000


class JournalNews(NamedTuple):
    """News since a cursor."""

    cursor: str
    """State to continue from."""
    changed: bool
    """Something has changed."""
    seeds: tuple[int, ...]
    """Numbers of seeds with new entries or a new result."""
    keys: tuple[str, ...]
    """New keys of the watched seed."""


class _NewsCursor(Struct, omit_defaults=True):
    """State of a run that a reader has seen."""

    entry: int = 0
    """Last entry of the journal."""
    result: int = 0
    """Last result of the journal."""
    seeds: dict[int, int] = field(default_factory=dict[int, int])
    """Number of the last entry of each seed that is worked on."""
    counts: tuple[int, ...] = ()
    """Numbers of seeds by state."""
    active: bool = False
    """A living process works on the run."""


def read_news(
    connection: Connection, run: int, cursor: str, watched: int | None, *, active: bool
) -> JournalNews:
    """Return what was committed since a cursor; see `JournalReader.news`."""
    try:
        before = msgspec.json.decode(cursor, type=_NewsCursor) if cursor else None
    except DECODE_ERRORS:
        before = None
    read = _sqlite_news if connection.dialect.name == "sqlite" else _postgres_news
    after, changed, keys = read(connection, run, before, watched)
    after.counts, after.active = tuple(count(connection, run)), active
    shown = msgspec.json.encode(after).decode()
    if before is None:
        return JournalNews(shown, False, (), ())
    if before.active != active:
        begun = select(seeds.c.number).where(seeds.c.run == run, ~seeds.c.done, seeds.c.claims > 0)
        changed |= set(connection.scalars(begun.limit(_MANY_STATES)))
    moved = bool(changed or keys) or (before.counts, before.active) != (after.counts, active)
    return JournalNews(shown, moved, tuple(sorted(changed)), tuple(keys))


def _sqlite_news(
    connection: Connection, run: int, before: _NewsCursor | None, watched: int | None
) -> tuple[_NewsCursor, set[int], list[str]]:
    changed: set[int] = set()
    keys: list[str] = []
    after = _NewsCursor(
        entry=connection.scalar(text("SELECT max(rowid) FROM agentflow_entries")) or 0,
        result=connection.scalar(text("SELECT max(rowid) FROM agentflow_harvests")) or 0,
    )
    if before is None:
        return after, changed, keys
    if after.entry > before.entry:
        rows = connection.execute(
            text(
                "SELECT seed, key FROM agentflow_entries WHERE rowid > :since AND rowid <= :last AND run = :run"
            ),
            {"since": max(before.entry, after.entry - _MANY_NEWS), "last": after.entry, "run": run},
        ).all()
        changed |= {seed for seed, _ in rows if seed >= 0}
        keys += [key for seed, key in rows if seed == watched]
    if after.result > before.result:
        rows = connection.execute(
            text(
                "SELECT seed FROM agentflow_harvests WHERE rowid > :since AND rowid <= :last AND run = :run"
            ),
            {"since": max(before.result, after.result - _MANY_NEWS), "last": after.result, "run": run},
        ).all()
        changed |= {seed for (seed,) in rows}
    return after, changed, keys


def _postgres_news(
    connection: Connection, run: int, before: _NewsCursor | None, watched: int | None
) -> tuple[_NewsCursor, set[int], list[str]]:
    newest = (
        select(func.max(entries.c.ordinal))
        .where(entries.c.run == seeds.c.run, entries.c.seed == seeds.c.number)
        .scalar_subquery()
    )
    wanted = or_((~seeds.c.done) & (seeds.c.claims > 0), seeds.c.number == watched)
    rows = connection.execute(select(seeds.c.number, newest).where(seeds.c.run == run, wanted)).all()
    after = _NewsCursor(seeds={number: last or 0 for number, last in rows})
    if before is None:
        return after, set(), []
    seen = before.seeds
    changed = {
        number for number in after.seeds.keys() | seen.keys() if after.seeds.get(number) != seen.get(number)
    }
    keys: list[str] = []
    if watched is not None and watched in seen:
        chosen = select(entries.c.key).where(
            entries.c.run == run, entries.c.seed == watched, entries.c.ordinal > seen[watched]
        )
        keys = list(connection.scalars(chosen.limit(_MANY_NEWS)))
    return after, changed, keys
