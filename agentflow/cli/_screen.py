"""How far a run is, for whoever watches: a live table on a terminal, else a line every few seconds."""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import anyio

from agentflow.synthesis.pipeline import Phase, Standing, SynthesisRun
from agentflow.telemetry import Level, configure_logging, get_logger

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["Screen", "screen_for"]

LINE_SECONDS = 5.0
"""Between two lines."""
FRAME_SECONDS = 0.25
"""Between two looks at the run, and two pictures on a terminal."""
OWN = ("agentflow", "mcp_servers", "runtimes")

logger = get_logger("agentflow.synth")


class Screen(Protocol):
    """Somebody who watches a run."""

    async def watch(self) -> None:
        """Show how far it is, until cancelled."""
        ...


@contextmanager
def screen_for(run: SynthesisRun) -> Generator[Screen]:
    """The screen that stderr can be."""
    if sys.stderr.isatty():
        with _terminal(run) as screen:
            yield screen
        return
    _set_up_logging(Level.INFO)
    logger.info("started", **_start(run))
    yield _Lines(run)
    if (standing := run.standing()).phase in (Phase.DONE, Phase.STOPPED):
        logger.info("ended", **_fields(standing))


class _Lines:
    """One structured line every few seconds, and whenever the run begins to do something else."""

    def __init__(self, run: SynthesisRun) -> None:
        self._run = run

    async def watch(self) -> None:
        phase, due = Phase.STARTING, LINE_SECONDS
        while True:
            await anyio.sleep(FRAME_SECONDS)
            standing = self._run.standing()
            if standing.phase is not phase or standing.seconds >= due:
                logger.info("progress", **_fields(standing))
                phase, due = standing.phase, standing.seconds + LINE_SECONDS


class _Picture:
    """A table that changes."""

    def __init__(self, run: SynthesisRun, live: "Live") -> None:
        self._run = run
        self._live = live

    async def watch(self) -> None:
        while True:
            self._live.update(_table(self._run.standing()), refresh=True)
            await anyio.sleep(FRAME_SECONDS)


@contextmanager
def _terminal(run: SynthesisRun) -> Generator[Screen]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        # Through the live picture, so that what is said stands above it.
        _set_up_logging(Level.WARNING)
        yield _Picture(run, live)
    _set_up_logging(Level.WARNING)


def _set_up_logging(level: Level) -> None:
    """Our own words at that level; of others only what may need a hand."""
    configure_logging(Level.WARNING, json=not sys.stderr.isatty())
    for package in OWN:
        logging.getLogger(package).setLevel(level.name)


def _start(run: SynthesisRun) -> dict[str, object]:
    config = run.config
    return {
        "output_dir": str(run.place.folder),
        "model": config.model.name,
        "max_depth": config.max_depth,
        "branching_factor": config.branching_factor,
    }


def _fields(standing: Standing) -> dict[str, object]:
    return {
        "phase": standing.phase.value,
        "seeds": standing.seeds,
        "done": standing.done,
        "open_trees": standing.open_trees,
        "nodes": sum(standing.nodes.values()),
        "questions": standing.questions,
        "rejected": standing.rejected,
        "calls_in_flight": standing.calls_in_flight,
        "calls_failed": standing.calls_failed,
        # Not "tokens": a count of them is no secret, and secrets are masked by their names.
        "used": standing.tokens,
        "cost": round(standing.cost, 6),
        "seconds": round(standing.seconds, 1),
    }


def _table(standing: Standing) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    bar = ProgressBar(total=max(1, standing.seeds), completed=standing.done, width=40)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in standing.nodes.items())
    table.add_row(standing.phase.value, bar)
    table.add_row("seeds", f"{standing.done} of {standing.seeds} done, {standing.open_trees} growing")
    table.add_row("nodes", f"{sum(standing.nodes.values())}  {verdicts}")
    table.add_row("questions", f"{standing.questions} accepted, {standing.rejected} drafts rejected")
    failed = f", {standing.calls_failed} failed" if standing.calls_failed else ""
    cost = f", cost {standing.cost:.4f}" if standing.cost else ""
    table.add_row(
        "model", f"{standing.calls_in_flight} calls in flight{failed}, {standing.tokens:,} tokens{cost}"
    )
    return table
