"""Finding the runs of a folder, a journal or a database."""

import os
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Final, Self

import msgspec
from msgspec import Struct

from agentflow._folder_files import find_file, is_inside
from agentflow._secrets import MASK, mask_text
from agentflow._terminal import printable
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.inspection._folders import folder_records
from agentflow.inspection._reader import RunReader, RunRecords, card_or_error, damage_reported
from agentflow.inspection._rollouts import EpisodeRun
from agentflow.inspection._trainings import TrainingFolder, is_training, settings_of
from agentflow.inspection._trees import TreeRun
from agentflow.inspection._types import RunSummary, WorkState
from agentflow.journal import JournalReader, StoredRun, is_same_database, journal_hosts, open_reader
from agentflow.runs import JOURNAL_FILE, RUN_START, html_card
from agentflow.telemetry import get_logger
from agentflow.trace import digest

logger = get_logger(__name__)

_DEPTH: Final = 3
"""Levels of folders that are searched for runs."""


class _Started(Struct):
    started: float | None = None


class RunCollection:
    """Runs of one place. Threads may share it.

    Example::

        with open_runs("results") as collection:
            print([run.name for run in collection.runs()])
    """

    def __init__(self, location: str | Path, journal: str = "") -> None:
        """Open it.

        :param journal: database that the settings of its runs may name.
        :raises ConfigurationError: one line, if there is no run.
        """
        self.location = location
        """Folder, file or URL."""
        self._journal = journal
        self._refused: set[str] = set()
        self._stack = ExitStack()
        self._journals: dict[str, JournalReader] = {}
        self._readers: dict[str, RunReader] = {}
        self._known: set[tuple[str, int]] = set()
        self._stored: dict[str, tuple[str | Path, StoredRun]] = {}
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Return the runs as a table for notebooks."""
        location = self._shown_location
        return card_or_error(location, lambda: html_card(f"Runs of {location}", map(_card_row, self.runs())))

    @property
    def _shown_location(self) -> str:
        """The place without a password."""
        if isinstance(self.location, str) and (journal := self._journals.get(self.location)) is not None:
            return journal.shown
        return str(self.location)

    def close(self) -> None:
        """Close all journals."""
        self._stack.close()

    def runs(self) -> list[RunSummary]:
        """Return all runs, also those that were begun since it was opened. One that can't be read has `trouble`."""
        self._find()
        return [_summary(reader) for reader in self._readers.values()]

    def run(self, run: str) -> RunReader:
        """Return the reader of a run by its id, or of the only run of that name.

        :raises KeyError: if there is none.
        """
        if run not in self._readers:
            self._find()
        if run in self._readers:
            return self._readers[run]
        named = [id for id in self._readers if id.rpartition("-")[0] == _slug(run)]
        if len(named) != 1:
            raise KeyError(run)
        return self._readers[named[0]]

    def journal_of(self, run: str) -> tuple[str | Path, str] | None:
        """Return the address of a run's journal and its name there, by its id, if it takes commands.

        A training has no journal, and those of earlier versions take none.
        """
        location, stored = self._stored.get(run, ("", None))
        if stored is None or self._journals[str(location)].paused(stored.number) is None:
            return None
        return location, stored.name

    def _find(self) -> None:
        """Open what is not open yet."""
        if isinstance(self.location, str):
            with damage_reported(self.location):
                self._add_journal(self.location, None)
            return
        if not self.location.is_dir():
            if not self.location.exists():
                raise ConfigurationError(
                    f"{self.location}: no such file or folder; name the output_dir of a run"
                )
            folder = self.location.parent if self.location.name == JOURNAL_FILE else None
            with damage_reported(self.location):
                self._add_journal(self.location, folder)
            return
        for folder in _folders(self.location, _DEPTH):
            try:
                with damage_reported(folder):
                    self._add_folder(folder)
            except ConfigurationError as error:
                if not self._readers and folder == self.location:
                    raise
                if str(error) not in self._refused:
                    logger.warning("a run is left out", reason=str(error))
                self._refused.add(str(error))
        if not self._readers:
            reason = f"; {min(self._refused)}" if self._refused else ""
            raise ConfigurationError(
                f"{self.location}: has no runs; name the output_dir of a run, or a folder of such folders{reason}"
            )

    def _add_folder(self, folder: Path) -> None:
        if not is_inside(folder, Path(self.location)):
            raise ConfigurationError(
                f"{folder}: a link leads out of {self.location}; name the folder behind it"
            )
        if os.path.lexists(folder / JOURNAL_FILE):
            find_file(folder / JOURNAL_FILE, folder)
            self._add_journal(folder / JOURNAL_FILE, folder)
        elif (url := _journal_url(folder)) is not None:
            if not self._journal or not is_same_database(url, self._journal):
                raise ConfigurationError(f"{folder}: {_refusal(url)}")
            self._add_journal(self._journal, folder)
        elif is_training(folder) and (str(folder), 0) not in self._known:
            self._known.add((str(folder), 0))
            id = self._free(_id(folder.name, digest(folder.name, 4)), folder)
            self._readers[id] = TrainingFolder(id, folder)

    def _add_journal(self, location: str | Path, folder: Path | None) -> None:
        name = str(location)
        if (journal := self._journals.get(name)) is None:
            journal = self._journals[name] = self._stack.enter_context(open_reader(location))
        stored = journal.runs()
        if folder is not None and isinstance(location, str):
            # A shared database: the folder belongs to one of its runs.
            run_name = settings_of(folder).get("run_name")
            stored = [run for run in stored if run.name == run_name]
        for run in stored:
            if (name, run.number) in self._known:
                continue
            self._known.add((name, run.number))
            shown = folder.name if folder is not None and len(stored) == 1 else run.name
            id = self._free(
                _id(shown, digest([shown, run.name, run.settings.decode(), _start(journal, run)], 4)),
                location,
            )
            kind = EpisodeRun if _is_rollout(journal, run) else TreeRun
            self._readers[id] = kind(id, shown, journal, run, folder)
            self._stored[id] = location, run

    def _free(self, id: str, location: object) -> str:
        """Return an id that no other run has."""
        return f"{id}{digest(str(location), 2)}" if id in self._readers else id


def open_runs(location: str | PathLike[str], *, journal: str = "") -> RunCollection:
    """Open runs for reading: a run's folder, a folder of such folders, a journal file, or `postgresql://…`.

    They may be active, finished or killed; nothing is changed. See docs/journal.md.

    :param journal: address of the database that the settings in the folders name. No other is connected to.
    :raises ConfigurationError: one line, if there is no run that can be read.
    """
    named = str(location)
    return RunCollection(named if "://" in named else Path(location), journal)


@contextmanager
def open_records(location: str | PathLike[str], name: str = "") -> Generator[RunRecords]:
    """Open a single run: that of a journal or, in a folder without one, that of its files.

    Example::

        with open_records("results") as run:
            print([record.tree.seed.content for record in run.records()])

    :param name: name or id of the run, if the place has several.
    :raises ConfigurationError: one line, if there is no such run that can be read.
    """
    folder = Path(location)
    has_files = "://" not in str(location) and folder.is_dir() and not (folder / JOURNAL_FILE).is_file()
    if has_files and (run := folder_records(folder)) is not None:
        yield run
        return
    with open_runs(location) as collection:
        runs = collection.runs()
        matches = [run for run in runs if name in ("", run.name, run.id)]
        if len(matches) != 1:
            names = [run.name for run in matches or runs]
            # Rollouts of an evaluation are named after their model.
            choices = (run.name if names.count(run.name) == 1 else run.id for run in matches or runs)
            reason = "has several runs" if matches else f"has no run {name}"
            raise ConfigurationError(f"{location}: {reason}; --name one of {', '.join(choices)}")
        yield collection.run(matches[0].id)


def _card_row(run: RunSummary) -> tuple[str, str]:
    return run.id, f"{run.kind.value}, {run.state.value}, {run.seeds.shown}"


def _summary(reader: RunReader) -> RunSummary:
    try:
        with damage_reported(reader.name):
            return reader.summary()
    except ConfigurationError as error:
        trouble = str(error)
        return RunSummary(
            id=reader.id, name=reader.name, kind=reader.kind, state=WorkState.STOPPED, trouble=trouble
        )


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs in and below a folder."""
    if os.path.lexists(folder / JOURNAL_FILE) or is_training(folder) or _journal_url(folder) is not None:
        yield folder
    elif depth and (depth == _DEPTH or not folder.is_symlink()):
        try:
            subfolders = sorted(
                subfolder
                for subfolder in folder.iterdir()
                if subfolder.is_dir() and not subfolder.name.startswith(".")
            )
        except OSError:
            return
        for subfolder in subfolders:
            yield from _folders(subfolder, depth - 1)


def _journal_url(folder: Path) -> str | None:
    """Return the database that the settings of a run name; `None`: its journal is a file beside them."""
    url: object = settings_of(folder).get("journal")
    return url if isinstance(url, str) and "://" in url else None


def _refusal(url: str) -> str:
    """Return one line about a database that only a folder names; the folder may come from elsewhere."""
    hosts = journal_hosts(url)
    if hosts is None:
        return "its settings name a journal that is no address of a database"
    shown = quote(printable(mask_text(url)))
    password = " with its password" if MASK in shown else ""
    return f"its settings name a journal on {printable(hosts)}; to connect to it, add --journal {shown}{password}"


def _is_rollout(journal: JournalReader, run: StoredRun) -> bool:
    settings: object = msgspec.json.decode(run.settings)
    if is_object(settings) and "evaluation_metric" in settings:
        return True
    first = journal.seeds(run.number, limit=1)
    return bool(first) and {"task", "sample"} <= first[0].seed.kwargs.keys()


def _start(journal: JournalReader, run: StoredRun) -> float | None:
    """Return the time of a run's beginning, which tells apart runs of one command in folders of the same name."""
    body = journal.kept(run.number, RUN_START)
    return None if body is None else msgspec.json.decode(body, type=_Started).started


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"


def _id(name: str, mark: str) -> str:
    return f"{_slug(name)}-{mark}"
