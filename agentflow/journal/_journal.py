"""Opening the journal and its runs."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, select, update

from agentflow._secrets import mask_settings
from agentflow._typeguards import is_object
from agentflow.actors import SYSTEM_CLOCK, ChildSpec, Clock, Supervisor
from agentflow.errors import ConfigurationError
from agentflow.journal._database import JournalDatabase, backend_for, launches, migrate, put_new, runs
from agentflow.journal._run import Inbox, Run, Writer
from agentflow.journal._seeds import LeaseTerms, NewSeed, add_seeds, this_process
from agentflow.trace import Seed, digest

_MAX_SHOWN = 60
_NOTHING = msgspec.Raw(b"nothing")
_users = count(1)


@asynccontextmanager
async def open_journal(
    url: str | Path,
    *,
    patience: float = 60.0,
    hosted: bool = True,
    now: Callable[[], float] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator["Journal"]:
    """Open the journal and create missing tables.

    See docs/journal.md for an example.

    :param url: `sqlite:///FILE` or `postgresql://…`; a `Path` is a SQLite file.
    :param patience: seconds for which an unavailable database is retried.
    :param hosted: run the writer in this task; otherwise put `writer_spec()` into a supervisor first.
    :param now: clock of leases; by default the database's.
    :param clock: clock of retries.
    :raises ConfigurationError: if the URL can't be used, or the tables belong to a newer version.
    :raises RunStopped: if the database is unusable or unavailable for longer than `patience`.
    """
    database, inbox = JournalDatabase(backend_for(url), patience, clock), Inbox()
    journal = Journal(database, inbox, now)
    try:
        await migrate(database)
        if hosted:
            async with Supervisor([journal.writer_spec()], intensity=3, name="journal", clock=clock):
                yield journal
        else:
            yield journal
    finally:
        inbox.abandon()
        await database.close()


class Journal:
    """Durable record of runs."""

    def __init__(self, database: JournalDatabase, inbox: Inbox, now: Callable[[], float] | None) -> None:
        self._database = database
        self._inbox = inbox
        self._clock: ColumnElement[float] = (
            database.backend.clock() if now is None else bindparam("now", callable_=now)
        )

    def writer_spec(self) -> ChildSpec:
        """Return the writer as a supervised child. After a crash the next writer continues without a loss."""
        return ChildSpec(id="journal-writer", start=lambda: Writer(self._database, self._inbox), shutdown=10)

    async def open_run(
        self,
        name: str,
        settings: Mapping[str, object],
        *,
        lease_seconds: float = 30.0,
        host: str | None = None,
        launch: str | None = None,
    ) -> Run:
        """Open the run of that name; create it the first time.

        :param settings: the settings that determine its content, without secrets.
        :param lease_seconds: seconds for which a claimed seed is held without renewal.
        :param host: name of this host in the records of its seeds; `None`: the system's.
        :param launch: id of the launch that this process belongs to; `None`: it is one by itself.
        :raises ConfigurationError: if it was created with other settings; the line names each difference.
        :raises RunStopped: if the journal can't be written.
        """
        if not name or not name.isprintable():
            raise ConfigurationError(f"run_name: {name!r} can't be used; write one line of visible signs")
        if lease_seconds <= 0:
            raise ConfigurationError(f"lease_seconds: {lease_seconds:g} is too short; write more than 0")
        # Equal settings give equal bytes.
        wanted = msgspec.json.encode(settings, order="deterministic")
        user = f"{this_process()}#{next(_users)}"
        launch = launch or user

        def open_or_make(connection: Connection) -> tuple[int, bytes]:
            put_new(connection, runs, {"name": name, "settings": wanted, "paused": False}, "name")
            stored_run = connection.execute(
                select(runs.c.id, runs.c.settings).where(runs.c.name == name)
            ).one()
            row = {"run": stored_run.id, "launch": launch, "stopped": False}
            put_new(connection, launches, row, "run", "launch")
            return stored_run

        number, kept = await self._inbox.change(open_or_make)
        before: object = msgspec.json.decode(kept)
        # A shared database has the same run for every output directory.
        shared = "://" in self._database.backend.shown
        _check_same(name, before, settings, "run_name" if shared else "output_dir or run_name")
        return Run(
            self._database,
            self._inbox,
            number=number,
            key=digest(before, 16),
            user=user,
            launch=launch,
            terms=LeaseTerms(self._clock, lease_seconds, host),
        )

    async def pause_run(self, name: str, *, paused: bool) -> None:
        """Let all processes of a run pause, those that start later too, or let them continue."""
        change = update(runs).where(runs.c.name == name).values(paused=paused)
        await self._inbox.change(lambda connection: connection.execute(change))

    async def stop_run(self, name: str) -> None:
        """Let all processes of the launches of a run so far end; a pause ends, too. A later launch resumes the run."""

        def stop(connection: Connection) -> None:
            connection.execute(update(runs).where(runs.c.name == name).values(paused=False))
            number = _number(connection, name)
            connection.execute(update(launches).where(launches.c.run == number).values(stopped=True))

        await self._inbox.change(stop)

    async def add_seeds(self, name: str, seeds: Sequence[NewSeed], origin: str) -> list[Seed]:
        """Add a list of seeds to a run of that name; see `Run.add_seeds`."""
        return await self._inbox.change(
            lambda connection: add_seeds(connection, _number(connection, name), seeds, origin)
        )


def _number(connection: Connection, name: str) -> int:
    """Return the number of a run.

    :raises ConfigurationError: if there is none.
    """
    number = connection.scalar(select(runs.c.id).where(runs.c.name == name))
    if number is None:
        raise ConfigurationError(f"journal: it has no run {name!r}")
    return number


def _check_same(run: str, before: object, now: object, choice: str) -> None:
    """Refuse settings other than those the run was created with. Secrets that an earlier version stored are ignored.

    :param choice: setting that gives another run.
    :raises ConfigurationError: one line that names each difference.
    """
    if differences := "; ".join(_differences("", mask_settings(before), mask_settings(now))):
        raise ConfigurationError(
            f"run {run!r} was made with other settings ({differences}); choose another {choice}, "
            "or go back to the old settings"
        )


def _differences(path: str, before: object, now: object) -> Iterator[str]:
    if is_object(before) and is_object(now):
        for key in sorted(before.keys() | now.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, before.get(key, _NOTHING), now.get(key, _NOTHING))
    elif (was := _text(before)) != (is_now := _text(now)):
        yield f"{path}: {_short(was)} -> {_short(is_now)}"


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
