"""Runs as real processes: started, observed from outside, and compared by their results."""

import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml
from anyio.from_thread import start_blocking_portal

from agentflow.synthesis import PAIRS, REPORT, TRAJECTORIES, TREES
from agentflow.testing import fake_endpoint
from runtimes.process.trusted._server_folder import realm
from tests.agentflow.cli._programs import environment
from tests.system._supervised import Endpoint

FILES = (PAIRS, TRAJECTORIES, TREES, REPORT)
TREE: dict[str, object] = {"max_depth": 4, "branching_factor": 2, "depth_threshold": 2}
"""At most fourteen actions per seed, four in parallel."""
SEEDS = (
    "The capital of the Varrow Isles is Port Vannick, the largest harbour of Ossel.",
    "Lighthouses of the isles and the keepers who were the first to light their lamps.",
    "Ferries between the harbour towns, their engines, their captains and their routes.",
    "The museum, the observatory and the library of Port Vannick, and who founded them.",
)
SEARCH: dict[str, object] = {"available_tools": ["rag_search"]}
"""Stateless tools: only model calls and searches."""
SEARCH_AND_RUN: dict[str, object] = {
    "available_tools": ["rag_search", "bash_run", "code_run"],
    "number_of_seed": 2,
    "max_depth": 3,
}
"""Stateful tools as well: each branch has its own shell and interpreter."""
DONE, STOPPED = 0, 3
"""Exit statuses: complete; ended early, resumable by the same command."""
GONE_SECONDS = 60.0
"""Seconds; far more than the runtime needs to clean up after a killed program, also with little CPU."""
_MODEL = ("plan/", "propose/", "repair/", "hidden/", "hidden2/", "evidence/", "others/", "recall/")
_ROLE = {
    "plan": "plan",
    "propose": "questionproposal",
    "repair": "repaireddrafts",
    "hidden": "hiddenanswer",
    "hidden2": "hiddenanswer",
    "evidence": "readings",
    "others": "otheranswers",
    "recall": "recalled",
}
_SUBREAPER = 36
_START_A_RUNTIME = """
import anyio
from runtimes.process import ProcessRuntime

async def main():
    async with ProcessRuntime():
        pass

anyio.run(main)
"""


class Entry(NamedTuple):
    """Result in the journal."""

    seed: int
    key: str


class Calm(NamedTuple):
    """Undisturbed run."""

    files: dict[str, bytes]
    """Its files."""
    entries: int
    """Number of results in its journal."""
    results: dict[bytes, set[Entry]]
    """Results of each model request."""

    def requests(self) -> list[bytes]:
        """All requests, sorted."""
        return sorted(request for request, results in self.results.items() for _ in results)


class Snapshot(NamedTuple):
    """State at one moment."""

    kept: frozenset[Entry]
    """Model results in the journal."""
    calls: int
    """Requests received by the endpoint, at least those behind `kept`."""


@dataclass
class Running:
    """Run in its own folder, with its own endpoint."""

    folder: Path
    url: str
    settings: Mapping[str, object]
    lives: int = 0
    """Number of starts."""
    seen: dict[int, psutil.Process] = field(default_factory=dict[int, psutil.Process])
    """Every process of it seen so far."""

    def start(self) -> "subprocess.Popen[str]":
        """Start the supervisor, or start it again."""
        self.lives += 1
        config = self.folder / "config.yaml"
        if self.lives == 1:
            seeds = "".join(json.dumps({"content": seed}) + "\n" for seed in SEEDS)
            (self.folder / "seeds.jsonl").write_text(seeds, encoding="utf-8")
            own = {"seeds_file": str(self.folder / "seeds.jsonl"), "output_dir": str(self.output)}
            model = {"model_name": "fake", "base_url": self.url, "control": False}
            config.write_text(yaml.safe_dump({**own, **model, **TREE, **self.settings}), encoding="utf-8")
            self.temporary.mkdir()
        with self.errors.open("a", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "agentflow.supervisor", "--config", str(config)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )

    def complete(self) -> None:
        """Start it, and wait for a successful end."""
        with self.start() as process:
            assert process.wait(timeout=300) == DONE, self.said()

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint's URL."""
        return Endpoint(self.url)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that keep all its other files in one place."""
        return environment() | {"TMPDIR": str(self.temporary), "XDG_RUNTIME_DIR": str(self.temporary)}

    @property
    def output(self) -> Path:
        """Folder of its output files."""
        return self.folder / "results"

    @property
    def temporary(self) -> Path:
        """Folder of all its temporary files."""
        return self.folder / "temporary"

    @property
    def errors(self) -> Path:
        """Its output."""
        return self.folder / "stderr"

    def said(self) -> str:
        """The end of its output."""
        return self.errors.read_text(encoding="utf-8")[-6000:]

    def files(self) -> dict[str, bytes]:
        """Its settings file."""
        return {name: (self.output / name).read_bytes() for name in FILES}

    def entries(self) -> list[Entry]:
        """Return everything in its journal, by seed and in the order of writing."""
        journal = self.output / "journal.db"
        try:
            with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30)) as database:
                rows = database.execute(
                    "SELECT seed, key FROM agentflow_entries ORDER BY seed, ordinal"
                ).fetchall()
        except sqlite3.OperationalError:
            # It did not exist when the program was killed, or is being created right now.
            return []
        return [Entry(*row) for row in rows]

    def requests(self) -> list[bytes]:
        """Return the bodies of all requests that the endpoint received, in order."""
        log = self.folder / "requests"
        return log.read_bytes().splitlines() if log.exists() else []

    def snapshot(self) -> Snapshot:
        """Return the journal's contents and the requests so far."""
        kept = frozenset(of_models(self.entries()))
        return Snapshot(kept, len(self.requests()))

    def look(self, supervisor: psutil.Process) -> list[tuple[str, psutil.Process]]:
        """Return the names of all its processes except the supervisor, and the processes."""
        named: list[tuple[str, psutil.Process]] = []
        for each in [supervisor, *supervisor.children(recursive=True)]:
            self.seen[each.pid] = each
            with suppress(psutil.NoSuchProcess):
                named.append((each.name(), each))
        return named[1:]


def of_models(entries: Iterable[Entry]) -> list[Entry]:
    """Return the results of model calls."""
    return [entry for entry in entries if entry.key.startswith(_MODEL)]


def results_by_request(run: Running) -> dict[bytes, set[Entry]]:
    """Map each request to its results, in a run that grew trees sequentially, with one call at a time."""
    entries, requests = of_models(run.entries()), run.requests()
    assert len(entries) == len(requests), "each result is of one call"
    found: dict[bytes, set[Entry]] = {}
    for entry, request in zip(entries, requests, strict=True):
        name = json.loads(request)["response_format"]["json_schema"]["name"]
        assert name == _ROLE[entry.key.partition("/")[0]], f"{entry} is no result of a {name}"
        # Two trees may arrive at the same question, which is verified with the same words.
        found.setdefault(request, set()).add(entry)
    return found


@contextmanager
def new_run(
    folder: Path, settings: Mapping[str, object], *, delay_ms: float = 20, jitter_ms: float = 30
) -> Generator[Running]:
    """Yield a run that has not started, and its endpoint."""
    folder.mkdir()
    endpoint = fake_endpoint(delay_ms=delay_ms, jitter_ms=jitter_ms, log=folder / "requests")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(endpoint) as url:
        yield Running(folder, url, settings)


def calm(folder: Path, settings: Mapping[str, object]) -> Calm:
    """Yield a run with one tree and one call at a time, with an immediate endpoint."""
    with new_run(
        folder, {**settings, "max_open_trees": 1, "max_concurrency": 1}, delay_ms=0, jitter_ms=0
    ) as run:
        run.complete()
        return Calm(run.files(), len(run.entries()), results_by_request(run))


@contextmanager
def adopting() -> Generator[None]:
    """Make this process the parent of orphans, so that none is missed."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert prctl(_SUBREAPER, 0, 0, 0, 0) == 0


def nothing_left(run: Running, others: set[int]) -> None:
    """Assert that no process, process group, mount or folder of the run is left.

    :param others: children of this process that do not belong to the run.
    """
    waiting = {*run.seen.values(), *_adopted(others)}
    while waiting:
        _, alive = psutil.wait_procs(waiting, timeout=GONE_SECONDS)
        assert not [f"{each.pid} {each.name()} {each.cmdline()}" for each in alive]
        # A process that has just ended left its children to this process.
        waiting = _adopted(others)
    assert sorted(path.name for path in run.output.iterdir() if path.name.startswith(".")) == []
    # The next start of any runtime removes files of a killed host monitor.
    subprocess.run([sys.executable, "-c", _START_A_RUNTIME], env=run.environment, cwd=run.folder, check=True)
    runtimes = run.temporary / f"agentflow-{os.geteuid()}"
    left = [path for path in run.temporary.rglob("*") if path != runtimes]
    # Files that record used user ids are never removed.
    assert [path for path in left if not (path.parent == runtimes and path.name.startswith("ids-"))] == []
    mark = f"agentflow-{realm(str(runtimes / 'any'))}-"
    assert [place for place, _, _ in os.walk("/sys/fs/cgroup") if mark in place] == []
    assert str(run.folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def _adopted(others: set[int]) -> set[psutil.Process]:
    """Return the children of this process except the others."""
    return {child for child in psutil.Process().children() if child.pid not in others}


def kill(victim: psutil.Process) -> None:
    """`kill -9`, ignoring a process that has just ended."""
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
