"""Progress display: a live table on a terminal, otherwise a log line every few seconds."""

import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from agentflow.cli._output import Exit, write_out
from agentflow.errors import AgentFlowError
from agentflow.runs import Phase, RunStatus
from agentflow.telemetry import Level, configure_logging, get_logger

if TYPE_CHECKING:
    from rich.table import Table


LINE_SECONDS = 5.0
"""Interval between two lines."""
FRAME_SECONDS = 0.25
"""Interval at which the status is read."""
OWN_PACKAGES = ("agentflow", "mcp_servers", "runtimes")

RUN_LOGGER = "agentflow.run"
"""Logger of progress lines."""
logger = get_logger(RUN_LOGGER)


class _DisplayedStatus(Protocol):
    """Fields of a status that every display needs."""

    @property
    def phase(self) -> Phase:
        """Current phase."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds since the process began."""
        ...


ViewedStatus = TypeVar("ViewedStatus", bound=_DisplayedStatus)


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


def run_fields(status: RunStatus, **kind_fields: object) -> dict[str, object]:
    """Return the fields of a line: the phase, the given ones, and the consumption."""
    return {
        "phase": status.phase.value,
        **kind_fields,
        "calls_in_flight": status.calls_in_flight,
        "calls_failed": status.calls_failed,
        # Not named "tokens": values under names of secrets are masked in logs.
        "used": status.tokens,
        "cost": round(status.cost, 6),
        **speed_fields(status.rate, status.remaining),
        "failures": status.failures,
        "seconds": round(status.seconds, 1),
    }


def speed_fields(rate: float, remaining: float | None) -> dict[str, object]:
    """Return the fields of the rate and of the estimated time to the end."""
    return {"per_minute": round(rate * 60, 3), "eta_seconds": None if remaining is None else round(remaining)}


class FollowedRuns(Protocol):
    """Runs that were started elsewhere, whose progress is read again and again."""

    async def read_until_end(self) -> None:
        """Read until they end.

        :raises AgentFlowError: one line, if nothing can be read any more.
        """
        ...

    def exit(self) -> Exit:
        """Return the exit status."""
        ...

    def print_end(self) -> None:
        """Print their end on stdout."""
        ...


def follow(runs: FollowedRuns, view: RunView[ViewedStatus], *, as_json: bool) -> int:
    """Show the progress of runs until they end, and return the exit status; they continue if this process is interrupted.

    :param as_json: the runs print it by themselves.
    :raises AgentFlowError: one line, if nothing can be read any more.
    """
    if as_json:
        anyio.run(runs.read_until_end)
        return runs.exit()
    with open_display(view) as show_progress:
        if (error := anyio.run(_read_beside, runs, show_progress)) is not None:
            raise error
    return runs.exit() if write_out(runs.print_end) else Exit.INTERRUPTED


async def _read_beside(
    runs: FollowedRuns, show_progress: Callable[[], Coroutine[None, None, None]]
) -> AgentFlowError | None:
    """Return the error of the reading: a task group would wrap it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show_progress)
        try:
            await runs.read_until_end()
        except AgentFlowError as error:
            return error
        finally:
            tasks.cancel_scope.cancel()
    return None


@contextmanager
def open_display(view: RunView[ViewedStatus]) -> Generator[Callable[[], Coroutine[None, None, None]]]:
    """Yield a function that shows the progress on stderr, in the way that fits it, until it is cancelled."""
    if sys.stderr.isatty():
        # These load rich.
        from agentflow.runs import open_terminal, show_progress

        with open_terminal() as screen:
            # While the table is live, so that log lines are printed above it.
            set_up_logging(Level.WARNING)
            yield partial(show_progress, screen, lambda: view.table(view.status()))
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


def set_up_logging(level: Level) -> None:
    """Set the log level of this project's packages; others log warnings and errors."""
    configure_logging(Level.WARNING, json=not sys.stderr.isatty())
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(level.name)
