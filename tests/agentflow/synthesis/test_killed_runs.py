"""Runs of every scenario, killed after a journal entry: the same bytes, and no model call is repeated."""

import json
import shutil
import sqlite3
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from agentflow.cli import main
from agentflow.testing import fake_endpoint
from agentflow.trace import Usage
from tests.agentflow.synthesis._scenarios import CONFIGS, SCENARIOS, Scenario, small_web, write_settings
from tests.agentflow.tasks._sight import Sight, harbour_figures, illustrated_pdf, sight

SMALL = ("max_depth=3", "depth_threshold=1", "max_selected_traj=2", "max_questions=1")
DEEP = ("max_depth=6", "depth_threshold=2", "min_depth=2", "max_selected_traj=2", "max_questions=2")
SIZES = {
    "our terminal": ("max_depth=3", "max_selected_traj=1"),
    "our gui": ("max_depth=5",),
    "our embodied": ("max_depth=8", "depth_threshold=2"),
    "our document pictures": ("max_depth=2", "branching_factor=1", "max_selected_traj=4"),
    **dict.fromkeys(("web", "full", "our web", "our web as JSON", "our deep research", "our document"), DEEP),
}
"""Settings of scenarios that keep nothing in a smaller tree."""


def _pictures(folder: Path, services: str) -> Mapping[str, object]:
    figures = harbour_figures(4)
    document = illustrated_pdf(folder / "report.pdf", [figures[:2], figures[2:]])
    return {"resource_init_configs.document.file": str(document)}


PICTURES = "our document pictures"
ALL = {
    **SCENARIOS,
    PICTURES: Scenario(
        CONFIGS / "document_pictures.yaml", {"content": "Tonnage of harbours"}, _pictures, "tasks.jsonl"
    ),
}
SHORT = ("rag", "data_analysis", "our terminal")
LEFT = {"journal.db", "settings.yaml"}


class Services(NamedTuple):
    """Addresses of the fake services."""

    model: str
    sight: str
    web: str


@pytest.fixture(scope="module")
def services() -> Generator[Services]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_endpoint()) as model,
        portal.wrap_async_context_manager(sight(Sight(2, known={"*": "77 tons"}))) as seeing,
        portal.wrap_async_context_manager(small_web()) as web,
    ):
        yield Services(model, seeing, web)


class KilledRun:
    """A scenario in a folder: run to its end, then again after parts of its journal were lost."""

    def __init__(self, name: str, folder: Path, services: Services) -> None:
        self._scenario = ALL[name]
        self._size = SIZES.get(name, SMALL)
        self._model = services.sight if name == PICTURES else services.model
        self._out = folder / "out"
        self._whole = folder / "whole"
        self._config = write_settings(self._scenario, folder, services.web, base_url=self._model, api_key="x")

    def run(self, in_flight: int) -> int:
        """Run it with so many calls in flight; return the number of model calls."""
        before = self._calls()
        more = ("seeds_file=seeds.jsonl", "output_dir=out", "control=false", f"max_concurrency={in_flight}")
        assert main(["synth", "--config", self._config.name, *more, *self._size]) == 0
        return self._calls() - before

    def keep(self) -> list[tuple[int, int]]:
        """Keep the finished run; return the ordinals of its entries, each with its number of model calls."""
        shutil.copytree(self._out, self._whole)
        assert self.files()[self._scenario.kept], "it kept no data"
        with closing(sqlite3.connect(self._whole / "journal.db")) as journal:
            entries = "SELECT ordinal, body FROM agentflow_entries WHERE seed >= 0 ORDER BY ordinal"
            rows = journal.execute(entries).fetchall()
        return [(ordinal, _calls_of(body)) for ordinal, body in rows]

    def kill_after(self, ordinal: int | None) -> None:
        """Restore the run as it was after this entry, or before the first one."""
        shutil.rmtree(self._out)
        shutil.copytree(self._whole, self._out)
        for file in self._out.iterdir():
            if file.is_file() and file.name not in LEFT:
                file.unlink()
        with closing(sqlite3.connect(self._out / "journal.db")) as journal, journal:
            if ordinal is None:
                journal.execute("DELETE FROM agentflow_entries")
            else:
                journal.execute("DELETE FROM agentflow_entries WHERE seed >= 0 AND ordinal > ?", (ordinal,))
            journal.execute("DELETE FROM agentflow_harvests")
            journal.execute("DELETE FROM agentflow_usage")
            journal.execute("UPDATE agentflow_seeds SET done = 0, owner = NULL, until = NULL")
            bodies = b"".join(body for (body,) in journal.execute("SELECT body FROM agentflow_entries"))
            for (digest,) in journal.execute("SELECT hash FROM agentflow_blobs").fetchall():
                if digest.encode() not in bodies:
                    journal.execute("DELETE FROM agentflow_blobs WHERE hash = ?", (digest,))

    def files(self) -> dict[str, bytes]:
        """Return the files of the run."""
        found = (
            file
            for file in self._out.rglob("*")
            if file.is_file() and file.suffix in (".jsonl", ".json", ".png")
        )
        return {str(file.relative_to(self._out)): file.read_bytes() for file in found}

    def _calls(self) -> int:
        with urllib.request.urlopen(f"{self._model.removesuffix('/v1')}/stats") as reply:
            return int(json.loads(reply.read())["calls"])


class _Recorded(Struct):
    """Entry of a journal; only replies of models have a usage."""

    usage: Usage = Usage()


def _calls_of(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Recorded).usage.calls
    except msgspec.ValidationError:
        return 0


def check(name: str, folder: Path, services: Services, points: int | None) -> None:
    """Kill a run after its entries, or after so many of them, and compare what is resumed."""
    killed = KilledRun(name, folder, services)
    made = killed.run(in_flight=1)
    whole = killed.files()
    entries = killed.keep()
    assert sum(calls for _, calls in entries) == made
    ordinals = [ordinal for ordinal, _ in entries]
    assert all(before < after for before, after in pairwise(ordinals))
    step = 1 if points is None else max(1, len(entries) // (points + 1))
    chosen = range(0, len(entries) + 1, step) if points is None else range(step, len(entries), step)
    for number, kept in enumerate(list(chosen)[:points]):
        killed.kill_after(ordinals[kept - 1] if kept else None)
        repeated = killed.run(in_flight=64 if number % 2 == 0 else 1)
        assert repeated == sum(calls for _, calls in entries[kept:]), (
            f"after {kept} of {len(entries)} entries"
        )
        assert killed.files() == whole, f"after {kept} of {len(entries)} entries"


@pytest.mark.promise("synthesis:killed")
@pytest.mark.parametrize("name", SHORT)
def test_a_run_killed_after_some_entries_gives_the_same_bytes_and_repeats_no_call(
    name: str, tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, tmp_path, services, points=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.promise("synthesis:killed")
@pytest.mark.parametrize("name", ALL)
def test_a_run_killed_after_any_entry_gives_the_same_bytes_and_repeats_no_call(
    name: str, tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, tmp_path, services, points=None)
