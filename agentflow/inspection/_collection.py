"""Finding the runs of a folder, a journal or a database."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from agentflow._secrets import MASK
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, error_line
from agentflow.inspection._cards import card_or_error, runs_card
from agentflow.inspection._reader import RunReader
from agentflow.inspection._rollouts import EpisodeRun
from agentflow.inspection._trainings import TrainingFolder, is_training, settings_of
from agentflow.inspection._trees import TreeRun
from agentflow.inspection._types import RunSummary, WorkState
from agentflow.journal import JournalReader, StoredRun, open_reader
from agentflow.runs import JOURNAL_FILE, RUN_START
from agentflow.trajectory import digest

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

    def __init__(self, place: str | Path) -> None:
        """Open it.

        :raises ConfigurationError: one line, if there is no run.
        """
        self.place = place
        """Folder, file or URL."""
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
        place = self._shown_place
        return card_or_error(place, lambda: runs_card(place, self.runs()))

    @property
    def _shown_place(self) -> str:
        """The place without a password."""
        if isinstance(self.place, str) and (journal := self._journals.get(self.place)) is not None:
            return journal.shown
        return str(self.place)

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
        place, stored = self._stored.get(run, ("", None))
        if stored is None or self._journals[str(place)].paused(stored.number) is None:
            return None
        return place, stored.name

    def _find(self) -> None:
        """Open what is not open yet."""
        if isinstance(self.place, str):
            self._add_journal(self.place, None)
            return
        if self.place.is_file():
            folder = self.place.parent if self.place.name == JOURNAL_FILE else None
            self._add_journal(self.place, folder)
            return
        if not self.place.is_dir():
            raise ConfigurationError(f"{self.place}: no such file or folder; name the output_dir of a run")
        broken: list[ConfigurationError] = []
        for folder in _folders(self.place, _DEPTH):
            try:
                self._add_folder(folder)
            except ConfigurationError as error:
                broken.append(error)
            except msgspec.DecodeError as error:
                broken.append(ConfigurationError(f"{folder}: a record of the run is damaged: {error}"))
        if broken and not self._readers:
            raise broken[0]
        if not self._readers:
            raise ConfigurationError(
                f"{self.place}: has no runs; name the output_dir of a run, or a folder of such folders"
            )

    def _add_folder(self, folder: Path) -> None:
        if (folder / JOURNAL_FILE).is_file():
            self._add_journal(folder / JOURNAL_FILE, folder)
        elif (url := _journal_url(folder)) is not None:
            self._add_journal(url, folder)
        elif is_training(folder) and (str(folder), 0) not in self._known:
            self._known.add((str(folder), 0))
            id = self._free(_id(folder.name, digest(folder.name, 4)), folder)
            self._readers[id] = TrainingFolder(id, folder)

    def _add_journal(self, place: str | Path, folder: Path | None) -> None:
        name = str(place)
        if (journal := self._journals.get(name)) is None:
            journal = self._journals[name] = self._stack.enter_context(open_reader(place))
        stored = journal.runs()
        if folder is not None and isinstance(place, str):
            # A shared database: the folder belongs to one of its runs.
            own = settings_of(folder).get("run_name")
            stored = [run for run in stored if run.name == own]
        for run in stored:
            if (name, run.number) in self._known:
                continue
            self._known.add((name, run.number))
            shown = folder.name if folder is not None and len(stored) == 1 else run.name
            id = self._free(
                _id(shown, digest([shown, run.name, run.settings.decode(), _start(journal, run)], 4)), place
            )
            kind = EpisodeRun if _is_rollout(journal, run) else TreeRun
            self._readers[id] = kind(id, shown, journal, run, folder)
            self._stored[id] = place, run

    def _free(self, id: str, place: object) -> str:
        """Return an id that no other run has."""
        return f"{id}{digest(str(place), 2)}" if id in self._readers else id


def open_runs(place: str | PathLike[str]) -> RunCollection:
    """Open runs for reading: a run's folder, a folder of such folders, a journal file, or `postgresql://…`.

    They may be active, finished or killed; nothing is changed. See docs/journal.md.

    :raises ConfigurationError: one line, if there is no run that can be read.
    """
    named = str(place)
    return RunCollection(named if "://" in named else Path(place))


def _summary(reader: RunReader) -> RunSummary:
    try:
        return reader.summary()
    except (ConfigurationError, msgspec.DecodeError) as error:
        trouble = str(error) if isinstance(error, ConfigurationError) else error_line(error)
        return RunSummary(
            id=reader.id, name=reader.name, kind=reader.kind, state=WorkState.STOPPED, trouble=trouble
        )


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs in and below a folder."""
    if (folder / JOURNAL_FILE).is_file() or is_training(folder) or _journal_url(folder) is not None:
        yield folder
    elif depth:
        try:
            inner = sorted(
                each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")
            )
        except OSError:
            return
        for each in inner:
            yield from _folders(each, depth - 1)


def _journal_url(folder: Path) -> str | None:
    """Return the database that the settings of a run name; `None`: its journal is a file beside them.

    :raises ConfigurationError: if its password is needed.
    """
    url: object = settings_of(folder).get("journal")
    if not isinstance(url, str) or "://" not in url:
        return None
    if MASK in url:
        raise ConfigurationError(f"{folder}: its journal is {url}; name that address with its password")
    return url


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
