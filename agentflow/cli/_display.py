"""Progress display: a live table on a terminal, otherwise a log line every few seconds."""

import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from agentflow.runs import Phase, RunStatus
from agentflow.telemetry import Level, configure_logging, get_logger

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


LINE_SECONDS = 5.0
"""Interval between two lines."""
FRAME_SECONDS = 0.25
"""Interval at which the status is read, and the terminal is updated."""
OWN_PACKAGES = ("agentflow", "mcp_servers", "runtimes")

RUN_LOGGER = "agentflow.run"
"""Logger of progress lines."""
logger = get_logger(RUN_LOGGER)


class _Status(Protocol):
    """Fields of a status that every display needs."""

    @property
    def phase(self) -> Phase:
        """Current phase."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds since the process began."""
        ...


ViewedStatus = TypeVar("ViewedStatus", bound=_Status)


@dataclass(frozen=True, slots=True)
class RunView(Generic[ViewedStatus]):
    """A run as the display sees it."""

    status: Callable[[], ViewedStatus]
    """Returns the current progress."""
    start: Mapping[str, object]
    """Fields of the first line."""
    fields: Callable[[ViewedStatus], dict[str, object]]
    """Fields of a progress line."""
    table: "Callable[[ViewedStatus], Table]"
    """Table on a terminal."""


def run_fields(status: RunStatus, **own: object) -> dict[str, object]:
    """Return the fields of a line: the phase, the given ones, and the consumption."""
    return {
        "phase": status.phase.value,
        **own,
        "calls_in_flight": status.calls_in_flight,
        "calls_failed": status.calls_failed,
        # Not named "tokens": values under names of secrets are masked in logs.
        "used": status.tokens,
        "cost": round(status.cost, 6),
        "seconds": round(status.seconds, 1),
    }


def run_table(status: RunStatus, notes: Sequence[str] = (), **rows: str) -> "Table":
    """Return a table of a progress bar, the given rows, the consumption, and notes about the input."""
    from rich.text import Text

    table = progress_table(status.phase.value, status.seeds, status.done)
    failed = f", {status.calls_failed} failed" if status.calls_failed else ""
    cost = f", cost {status.cost:.4f}" if status.cost else ""
    rows["model"] = f"{status.calls_in_flight} calls in flight{failed}, {status.tokens:,} tokens{cost}"
    for name, text in rows.items():
        table.add_row(name, text)
    for note in notes:
        table.add_row("input", Text(note))
    return table


def progress_table(phase: str, total: int, done: int) -> "Table":
    """Return a table whose first row is a progress bar."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row(phase, ProgressBar(total=max(1, total), completed=done, width=40))
    return table


@contextmanager
def open_display(view: RunView[ViewedStatus]) -> Generator[Callable[[], Coroutine[None, None, None]]]:
    """Yield a function that shows the progress on stderr, in the way that fits it, until it is cancelled."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            # While the table is live, so that log lines are printed above it.
            set_up_logging(Level.WARNING)
            yield partial(_update_table, view, live)
        set_up_logging(Level.WARNING)
        return
    set_up_logging(Level.INFO)
    logger.info("started", **view.start)
    yield partial(_log_lines, view)
    if (status := view.status()).phase in (Phase.DONE, Phase.STOPPED):
        logger.info("ended", **view.fields(status))


async def _log_lines(view: RunView[ViewedStatus]) -> None:
    """Log a line every few seconds and at each change of phase."""
    phase, due = Phase.STARTING, LINE_SECONDS
    while True:
        await anyio.sleep(FRAME_SECONDS)
        status = view.status()
        if status.phase is not phase or status.seconds >= due:
            logger.info("progress", **view.fields(status))
            phase, due = status.phase, status.seconds + LINE_SECONDS


async def _update_table(view: RunView[ViewedStatus], live: "Live") -> None:
    """Update a table in place."""
    from agentflow.cli._printable_data import Printable

    while True:
        live.update(Printable(view.table(view.status())), refresh=True)
        await anyio.sleep(FRAME_SECONDS)


def set_up_logging(level: Level) -> None:
    """Set the log level of this project's packages; others log warnings and errors."""
    configure_logging(Level.WARNING, json=not sys.stderr.isatty())
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(level.name)
