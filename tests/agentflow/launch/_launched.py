"""Launches as real programs, what one machine writes, and the journal that they share."""

import json
import os
import signal
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from agentflow.errors import ConfigurationError
from agentflow.journal import JournalReader, open_reader
from tests.agentflow.cli._programs import finish, run_here, running
from tests.system._supervised import Endpoint, endpoint, settings, wait_for

if TYPE_CHECKING:
    from subprocess import Popen

ROUNDS = [3, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
"""Numbers of disturbances."""
CALLS = ("plan", "node", "facts", "aliases", "word", "translate", "read", "recall")
"""First parts of the keys of model calls."""
COMMANDS = ("synth", "rollout", "eval")
_NOT_COMPARED = ("settings.yaml", "report.html", "summary.json", "journal.db", ".lock")
"""Files with times or addresses."""


def words(command: str, folder: Path, at: Endpoint, seeds: int = 6) -> list[str]:
    """Return the arguments of a small run that asks the endpoint."""
    if command == "synth":
        return ["synth", *settings(folder, seeds=seeds), *at.words, "max_open_trees=1"]
    tasks = ["--limit", "6"] if command == "eval" else ["--benchmark", "bamboogle", "number_of_tasks=6"]
    named = ["eval", "bamboogle"] if command == "eval" else ["rollout"]
    few = ["max_turns=3", "max_workers=1", "evaluation_metric=exact_match"]
    return [*named, *tasks, *at.words, *few]


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of all runs below a folder that equal work gives equal bytes."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_COMPARED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@cache
def one_machine(command: str, seeds: int = 6) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the files of an undisturbed run of one process, and the counters of its endpoint."""
    with TemporaryDirectory() as name, endpoint() as at:
        folder = Path(name)
        done = run_here(*words(command, folder, at, seeds), "output_dir=out", cwd=folder)
        assert done.returncode == 0, done.stderr
        return files(folder / "out"), at.stats()


@contextmanager
def launched(folder: Path, journal: str, command: Sequence[str], *options: str) -> Generator["Popen[str]"]:
    """Launch a command while a block runs."""
    output = ("output_dir=out", f"journal={journal}")
    given = options or ("--on", "local", "--workers", "2")
    with running(
        "agentflow.cli", "launch", *given, *command, *output, cwd=folder, python=sys.executable
    ) as process:
        yield process


def ended(process: "Popen[str]", status: int = 0) -> str:
    """Wait for the end of a launch, check its status, and return what it said on stderr."""
    # Without a limit of its own: programs with a changed clock are slow on a busy machine.
    _, err = process.communicate()
    assert process.returncode == status, err
    return err


class Shared:
    """Journal of a launch."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Its address."""

    def holders(self) -> dict[str, str]:
        """Return the owners of leased seeds with their hosts."""
        return dict(self._ask("SELECT owner, host FROM agentflow_seeds WHERE owner IS NOT NULL AND NOT done"))

    def hosts(self) -> set[str]:
        """Return the hosts of finished seeds."""
        return {row[0] for row in self._ask("SELECT DISTINCT host FROM agentflow_seeds WHERE done")}

    def recorded_calls(self) -> int:
        """Return the number of model calls whose results are recorded."""
        found = self._ask("SELECT key, body FROM agentflow_entries WHERE seed >= 0")
        return sum(_calls(bytes(body)) for key, body in found if key.partition("/")[0] in CALLS)

    def takeovers(self) -> int:
        """Return how many times a seed was claimed that somebody had claimed before."""
        return sum(row[0] - 1 for row in self._ask("SELECT claims FROM agentflow_seeds WHERE claims > 0"))

    def end_lease(self, owner: str) -> None:
        """Let the lease of an owner run out now."""
        address = make_url(self.url).set(drivername="postgresql+asyncpg")

        async def change() -> None:
            engine = create_async_engine(address)
            async with engine.begin() as connection:
                ended = text("UPDATE agentflow_seeds SET until = 0 WHERE owner = :owner")
                await connection.execute(ended, {"owner": owner})
            await engine.dispose()

        anyio.run(change)

    def wait_for_holders(
        self, process: "Popen[str]", number: int, at: Endpoint | None = None
    ) -> dict[str, str]:
        """Wait until so many processes hold seeds, and return them.

        :param at: endpoint that answers a few calls meanwhile: a process learns by its next results that it has lost a seed.
        """
        found: dict[str, str] = {}

        def enough() -> bool:
            assert process.poll() is None, finish(process)
            if at is not None:
                let_pass(at, 1)
            found.clear()
            found.update(self.holders())
            return len(found) == number

        wait_for(enough)
        return found

    def _ask(self, query: str) -> list[tuple[Any, Any]]:
        try:
            with open_reader(self.url) as reader:
                return _rows(reader, query)
        except ConfigurationError:
            # The tables do not exist yet.
            return []


def _rows(reader: JournalReader, query: str) -> list[tuple[Any, Any]]:
    return reader.read(
        lambda connection: [(row[0], row[-1]) for row in connection.execute(text(query)).all()]
    )


def _calls(body: bytes) -> int:
    calls: int = json.loads(body)["usage"]["calls"]
    return calls


class Disturbances:
    """Moments of disturbances, and the calls that may be made again after each."""

    def __init__(self, shared: Shared, log: Path) -> None:
        """Describe them.

        :param log: log of the endpoint.
        """
        self._shared = shared
        self._log = log
        self._moments: list[tuple[int, int]] = []

    def add(self) -> None:
        """Note a disturbance: calls that are not recorded now may be made again."""
        recorded = self._shared.recorded_calls()
        # Read afterwards: whatever is recorded was made before.
        bodies = self._bodies()
        self._moments.append((len(bodies), len(set(bodies)) - recorded))

    def repeated(self) -> tuple[int, int]:
        """Return how many calls from before a disturbance were made again after it, and how many may be.

        A call that is not recorded may be made again by both: who took over, and who was away and has lost its answer.
        """
        bodies = self._bodies()
        ends = [count for count, _ in self._moments[1:]] + [len(bodies)]
        again = sum(
            len(set(bodies[:count]).intersection(bodies[count:end]))
            for (count, _), end in zip(self._moments, ends, strict=True)
        )
        return again, sum(lost for _, lost in self._moments)

    def _bodies(self) -> list[bytes]:
        return self._log.read_bytes().splitlines()


def let_pass(at: Endpoint, calls: int) -> None:
    """Answer the calls held back and some more, and hold back those after them."""
    at.release()
    at.hold(calls)


@contextmanager
def suspended(processes: Iterable[psutil.Process]) -> Generator[None]:
    """Suspend processes while a block runs."""
    stopped = list(processes)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def pid_of(owner: str) -> int:
    """Return the process id in the name of an owner."""
    return int(owner.split(":")[1])


def kill(owner: str) -> None:
    """Kill the process that is an owner."""
    os.kill(pid_of(owner), signal.SIGKILL)
