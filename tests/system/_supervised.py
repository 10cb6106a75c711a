"""Whole runs by the real command, and their results.

A run that nothing stops is a call of the command in this process; runs that get signals or are killed are programs.
"""

import json
import re
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from anyio.from_thread import start_blocking_portal

from agentflow.cli import synth
from agentflow.synthesis import PAIRS, REPORT, TRAJECTORIES, TREES
from agentflow.testing import fake_endpoint
from tests.agentflow.cli._programs import run_here
from tests.system._flaky import FLAKY

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = [
    "PROGRAM",
    "Ended",
    "Endpoint",
    "calls_of",
    "contents",
    "endpoint",
    "follow",
    "moment",
    "settings",
    "spent_in",
    "supervise",
    "supervise_until_done",
    "trees_of",
    "undisturbed",
    "wait_for",
]

PROGRAM = "agentflow.supervisor"
FILES = (PAIRS, TRAJECTORIES, TREES, REPORT)
LOOK_SECONDS = 0.02
"""Seconds between two polls."""


class Endpoint(NamedTuple):
    """A fake endpoint."""

    url: str
    """Its URL."""

    def stats(self) -> dict[str, int]:
        """Its counters."""
        return self._ask("stats")

    def hold(self, calls: int = 0) -> int:
        """Hold back calls from now on, after some more; return the number of the last one before."""
        return self._ask(f"hold?calls={calls}")["calls"] + calls

    def release(self) -> None:
        """Answer the calls held back."""
        self._ask("release")

    def wait_for(self, **counts: int) -> None:
        """Wait until a counter reaches a number."""
        wait_for(lambda: all(self.stats()[name] >= count for name, count in counts.items()))

    @property
    def words(self) -> tuple[str, ...]:
        """Its model settings."""
        return ("model_name=fake", f"base_url={self.url}")

    def _ask(self, what: str) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/{what}", timeout=30) as answer:
            counted: dict[str, int] = json.load(answer)
        return counted


class Ended(NamedTuple):
    """A finished run."""

    status: int
    """Its exit status."""
    said: dict[str, Any]
    """Its stdout."""
    err: str
    """Its stderr."""

    @property
    def report(self) -> dict[str, Any]:
        """Its report."""
        report: dict[str, Any] = self.said["report"]
        return report


class Undisturbed(NamedTuple):
    """Undisturbed run for comparison."""

    files: dict[str, bytes]
    """Its files."""
    calls: int
    """Number of its model calls."""


@contextmanager
def endpoint(
    *,
    delay_ms: float = 0.0,
    faults: float = 0.0,
    same: bool = False,
    hold_after: int | None = None,
    down_after: int | None = None,
    log: Path | None = None,
) -> Generator[Endpoint]:
    """Fake endpoint in its own process."""
    serving = fake_endpoint(
        delay_ms=delay_ms, faults=faults, same=same, hold_after=hold_after, down_after=down_after, log=log
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving) as url:
        yield Endpoint(url)


def settings(folder: Path, *, share: float = 0.0, seeds: int = 6, **changes: object) -> tuple[str, str]:
    """Return the arguments that name a settings file for a run whose tool fails in that share of calls."""
    about = "of the old chronicle of the northern coast, with every harbour, lighthouse and cloister that it names"
    lines = [json.dumps({"content": f"Explore chapter {number} {about}"}) for number in range(seeds)]
    (folder / "seeds.jsonl").write_text("\n".join(lines), encoding="utf-8")
    said = {
        "seeds_file": "seeds.jsonl",
        "output_dir": "out",
        "available_tools": ["flaky_look"],
        "resource_init_configs": {FLAKY: {"share": share}},
        "max_depth": 4,
        "depth_threshold": 2,
        "max_drafts": 1,
        "max_planner_calls": 2,
        "closed_book_samples": 0,
        "control": False,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(said | changes), encoding="utf-8")
    return ("--config", "config.yaml")


def supervise(folder: Path, *words: str, status: int = 0) -> Ended:
    """Run it to its end and check the exit status."""
    done = run_here("--json", *words, cwd=folder, command=synth)
    assert done.returncode == status, done.stderr
    return Ended(done.returncode, json.loads(done.stdout), done.stderr)


def supervise_until_done(folder: Path, *words: str) -> tuple[Ended, int]:
    """Run it until no seed is left; return the last run, and the most times that a seed was in work."""
    postponed = Counter[str]()
    for _ in range(20):
        done = run_here("--json", *words, cwd=folder, command=synth)
        lines = (json.loads(line) for line in done.stderr.splitlines() if line.startswith("{"))
        postponed.update(line["seed"] for line in lines if line["event"] == "seed postponed")
        if done.returncode != 3:
            assert done.returncode == 0, done.stderr
            return Ended(done.returncode, json.loads(done.stdout), done.stderr), 1 + max(
                postponed.values(), default=0
            )
        assert re.search(r"\d+ of \d+ seeds (is|are) left: ", done.stderr), done.stderr
    raise AssertionError("seeds are always left")


@cache
def undisturbed() -> Undisturbed:
    """Run the settings without disturbance."""
    with TemporaryDirectory() as folder, endpoint() as at:
        supervise(Path(folder), *settings(Path(folder)), *at.words)
        return Undisturbed(contents(Path(folder) / "out"), at.stats()["calls"])


def follow(process: "Popen[str]", until: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Read a program's log until a line matches; return that line."""
    assert process.stderr is not None
    seen: list[str] = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("{") and until(json.loads(line)):
            found: dict[str, Any] = json.loads(line)
            return found
    raise AssertionError(f"it ended with {process.wait(60)}: {''.join(seen)}")


def wait_for(condition: Callable[[], object]) -> None:
    """Poll until a condition holds."""
    while not condition():
        time.sleep(LOOK_SECONDS)


def moment(line: dict[str, Any]) -> float:
    """Return the time of a log line."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run."""
    return {name: (folder / name).read_bytes() for name in FILES}


def trees_of(folder: Path) -> list[dict[str, Any]]:
    """Return its trees."""
    return [json.loads(line) for line in (folder / TREES).read_text(encoding="utf-8").splitlines()]


def spent_in(folder: Path) -> dict[str, dict[str, int]]:
    """Return the usage in its journal, by role."""
    with closing(sqlite3.connect(folder / "journal.db")) as journal:
        rows = journal.execute("SELECT role, body FROM agentflow_usage").fetchall()
    spent: dict[str, Counter[str]] = {}
    for role, body in rows:
        spent.setdefault(role, Counter()).update(json.loads(body))
    return {role: dict(used) for role, used in spent.items()}


def calls_of(folder: Path, *kinds: str) -> dict[str, dict[str, Any]]:
    """Return the calls in its journal whose keys have a prefix, by seed and key."""
    with closing(sqlite3.connect(folder / "journal.db")) as journal:
        rows = journal.execute("SELECT seed, key, body FROM agentflow_entries").fetchall()
    return {f"{seed}/{key}": json.loads(body) for seed, key, body in rows if key.partition("/")[0] in kinds}
