"""Progress of launched runs, read from their journal."""

from collections import Counter
from collections.abc import Collection
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct, field

from agentflow.errors import ConfigurationError
from agentflow.journal import JournalReader, open_reader
from agentflow.telemetry import get_logger

logger = get_logger(__name__)

POLL_SECONDS: Final = 1.0
"""Interval at which the journal is read, and new machines and ends of workers are looked for."""
_FAILURES: Final = 4
"""Number of failed readings in a row that are reported: a new journal has no tables until a worker begins."""


class LaunchStatus(Struct, frozen=True):
    """Progress of launched runs at one moment."""

    done: int = 0
    """Number of finished seeds or tasks."""
    total: int = 0
    """Number of all."""
    paused: bool = False
    """`agentflow ctl` has paused one of them."""
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of claimed ones by host."""
    finished: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of finished ones by host."""


class LaunchedRuns:
    """Reads the progress of launched runs.

    Example::

        runs = LaunchedRuns("postgresql://user@host/database", {"run"})
        tasks.start_soon(runs.follow)
    """

    def __init__(self, journal: str, names: Collection[str]) -> None:
        """:param journal: address of the journal.
        :param names: names of the runs in it.
        """
        self.status = LaunchStatus()
        """The progress that was read last."""
        self._journal = journal
        self._names = names

    async def follow(self) -> None:
        """Read again and again, until cancelled. A journal that does not answer is left to the workers."""
        failures = 0
        while True:
            try:
                await self.read()
                failures = 0
            except ConfigurationError as error:
                failures += 1
                if failures == _FAILURES:
                    logger.warning("no progress can be read; the workers try for a minute", reason=str(error))
            await anyio.sleep(POLL_SECONDS)

    async def read(self) -> None:
        """Read once.

        :raises ConfigurationError: if the journal can't be read.
        """
        await anyio.to_thread.run_sync(self._read_journal, abandon_on_cancel=True)

    def _read_journal(self) -> None:
        with open_reader(self._journal) as reader:
            self.status = self._read(reader)

    def _read(self, reader: JournalReader) -> LaunchStatus:
        done = total = 0
        paused = False
        held, finished = Counter[str](), Counter[str]()
        for run in reader.runs():
            if run.name not in self._names:
                continue
            counts, _, _ = reader.counts(run.number)
            paused |= bool(reader.paused(run.number))
            done, total = done + counts.done, total + sum(counts)
            for host, host_counts in reader.hosts(run.number).items():
                held[host] += host_counts.leased
                finished[host] += host_counts.done
        return LaunchStatus(done, total, paused, dict(held), dict(finished))
