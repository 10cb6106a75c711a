"""How far a run is, for whoever watches: a live table on a terminal, else a line every few seconds."""

import logging
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from agentflow.runs import Phase
from agentflow.telemetry import Level, configure_logging, get_logger

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["Screen", "Watched", "screen_for", "set_up_logging"]

LINE_SECONDS = 5.0
"""Between two lines."""
FRAME_SECONDS = 0.25
"""Between two looks at the run, and two pictures on a terminal."""
OWN = ("agentflow", "mcp_servers", "runtimes")

logger = get_logger("agentflow.run")


class Standing(Protocol):
    """How far a run is, as much as any screen needs."""

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        ...

    @property
    def seconds(self) -> float:
        """Since the process began."""
        ...


S = TypeVar("S", bound=Standing)


@dataclass(frozen=True, slots=True)
class Watched(Generic[S]):
    """A run, and how it is told of."""

    standing: Callable[[], S]
    """How far it is."""
    start: Mapping[str, object]
    """What is said in the beginning."""
    fields: Callable[[S], dict[str, object]]
    """A standing in one line."""
    table: "Callable[[S], Table]"
    """A standing as a picture."""


class Screen(Protocol):
    """Somebody who watches a run."""

    async def watch(self) -> None:
        """Show how far it is, until cancelled."""
        ...


@contextmanager
def screen_for(run: Watched[S]) -> Generator[Screen]:
    """The screen that stderr can be."""
    if sys.stderr.isatty():
        with _terminal(run) as screen:
            yield screen
        return
    set_up_logging(Level.INFO)
    logger.info("started", **run.start)
    yield _Lines(run)
    if (standing := run.standing()).phase in (Phase.DONE, Phase.STOPPED):
        logger.info("ended", **run.fields(standing))


class _Lines(Generic[S]):
    """One structured line every few seconds, and whenever the run begins to do something else."""

    def __init__(self, run: Watched[S]) -> None:
        self._run = run

    async def watch(self) -> None:
        phase, due = Phase.STARTING, LINE_SECONDS
        while True:
            await anyio.sleep(FRAME_SECONDS)
            standing = self._run.standing()
            if standing.phase is not phase or standing.seconds >= due:
                logger.info("progress", **self._run.fields(standing))
                phase, due = standing.phase, standing.seconds + LINE_SECONDS


class _Picture(Generic[S]):
    """A table that changes."""

    def __init__(self, run: Watched[S], live: "Live") -> None:
        self._run = run
        self._live = live

    async def watch(self) -> None:
        while True:
            self._live.update(self._run.table(self._run.standing()), refresh=True)
            await anyio.sleep(FRAME_SECONDS)


@contextmanager
def _terminal(run: Watched[S]) -> Generator[Screen]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        # Through the live picture, so that what is said stands above it.
        set_up_logging(Level.WARNING)
        yield _Picture(run, live)
    set_up_logging(Level.WARNING)


def set_up_logging(level: Level) -> None:
    """Our own words at that level; of others only what may need a hand."""
    configure_logging(Level.WARNING, json=not sys.stderr.isatty())
    for package in OWN:
        logging.getLogger(package).setLevel(level.name)
