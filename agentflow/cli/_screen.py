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

__all__ = [
    "Consumption",
    "Screen",
    "Watched",
    "consumed_fields",
    "consumed_words",
    "progress_table",
    "screen_for",
    "set_up_logging",
]

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


class Consumption(Protocol):
    """What a standing says of its models."""

    @property
    def calls_in_flight(self) -> int:
        """Requests that have no answer yet."""
        ...

    @property
    def calls_failed(self) -> int:
        """Calls that failed for good."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        ...

    @property
    def cost(self) -> float:
        """What they cost."""
        ...

    @property
    def seconds(self) -> float:
        """Since the process began."""
        ...


def consumed_fields(standing: Consumption) -> dict[str, object]:
    """The same, as fields of a line."""
    return {
        "calls_in_flight": standing.calls_in_flight,
        "calls_failed": standing.calls_failed,
        # Not "tokens": a count of them is no secret, and secrets are masked by their names.
        "used": standing.tokens,
        "cost": round(standing.cost, 6),
        "seconds": round(standing.seconds, 1),
    }


def consumed_words(standing: Consumption) -> str:
    """The same, for people."""
    failed = f", {standing.calls_failed} failed" if standing.calls_failed else ""
    cost = f", cost {standing.cost:.4f}" if standing.cost else ""
    return f"{standing.calls_in_flight} calls in flight{failed}, {standing.tokens:,} tokens{cost}"


def progress_table(phase: str, total: int, done: int) -> "Table":
    """A table that begins with a bar."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row(phase, ProgressBar(total=max(1, total), completed=done, width=40))
    return table


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
