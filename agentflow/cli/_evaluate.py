"""`agentflow eval`: rollouts of several benchmarks and models, in one table."""

import argparse
import json
import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit, print_wide, write_out
from agentflow.errors import ConfigurationError, RunStopped
from agentflow.rollout import (
    Assignment,
    RolloutConfig,
    RolloutRun,
    assign,
    load_rollout_config,
)
from agentflow.rollout.analysis import with_interval
from agentflow.rollout.benchmarks import benchmark_names
from agentflow.telemetry import Level

if TYPE_CHECKING:
    from rich.table import Table


OUTPUT = "eval_results"
CONCURRENCY = 2
"""Number of concurrent rollouts; each has its own engines, sandboxes and journal."""


class _Cell(NamedTuple):
    """Rollout of one benchmark with one model."""

    benchmark: str
    model: str
    run: RolloutRun
    assignment: Assignment


def run_eval(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    set_up_logging(Level.WARNING)
    evaluation = _Evaluation(_cells(given))
    anyio.run(evaluation.run)
    read = write_out(partial(_show, evaluation, as_json=given.json))
    if not read or evaluation.interrupted:
        return Exit.INTERRUPTED
    return Exit.STOPPED if evaluation.stopped else Exit.DONE


def _cells(given: argparse.Namespace) -> list[_Cell]:
    """Read and check all rollouts before the first one begins."""
    names = benchmark_names() if given.benchmark == "all" else [given.benchmark]
    if given.data and len(names) > 1:
        raise ConfigurationError("--data: one file can't be all benchmarks; name one of them")
    models = [name for name in given.models.split(",") if name.strip()]
    base = load_rollout_config(given.config, given.settings)
    return [_cell(given, base, name, model) for name in names for model in models or [""]]


def _cell(given: argparse.Namespace, base: RolloutConfig, benchmark: str, model: str) -> _Cell:
    shown = model.strip() or ("offline" if base.offline else base.model_name)
    named = {
        "benchmark_name": benchmark,
        "number_of_tasks": given.limit,
        "samples": given.samples,
        "model_name": model.strip(),
        "data_path": given.data,
        "parallel": not base.model_fields_set & {"max_workers", "parallel"},
        "output_dir": str(Path(base.output_dir or OUTPUT) / _plain(benchmark) / _plain(shown)),
    }
    arguments = {name: value for name, value in named.items() if value}
    config = load_rollout_config(given.config, given.settings, arguments)
    return _Cell(benchmark, shown, RolloutRun(config, resume=given.resume), assign(config))


def _plain(name: str) -> str:
    """Return a name that is valid on any file system."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem if "/" in name and Path(name).suffix else name)


class _Evaluation:
    """All rollouts of the table."""

    def __init__(self, cells: Sequence[_Cell]) -> None:
        self.cells = cells
        """The rollouts, in order."""
        self.stopped: list[str] = []
        """Reasons of rollouts that ended early."""
        self.interrupted = False
        """A signal was received."""
        self._limit = anyio.Semaphore(CONCURRENCY)

    async def run(self) -> None:
        """Run all rollouts."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            async with anyio.create_task_group() as rollouts:
                for cell in self.cells:
                    rollouts.start_soon(self._work, cell)
            tasks.cancel_scope.cancel()

    async def _work(self, cell: _Cell) -> None:
        async with self._limit:
            if self.interrupted:
                return
            try:
                await cell.run.run(cell.assignment)
            except RunStopped as stopped:
                self.stopped.append(f"{cell.benchmark}, {cell.model}: {stopped.message}")

    async def _listen(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                for cell in self.cells:
                    cell.run.stop_now() if self.interrupted else cell.run.stop(f"received {number.name}")
                self.interrupted = True


def _show(evaluation: _Evaluation, *, as_json: bool) -> None:
    for line in evaluation.stopped:
        sys.stderr.write(f"agentflow: {line}\n")
    cells = evaluation.cells
    if as_json:
        records = [
            {
                "benchmark": cell.benchmark,
                "model": cell.model,
                "output_dir": str(cell.run.config.output),
                "summary": msgspec.to_builtins(cell.run.summary),
            }
            for cell in cells
        ]
        sys.stdout.write(json.dumps(records) + "\n")
        return
    folder = cells[0].run.config.output.parent.parent
    print_wide(_table(cells), f"\nFiles below {folder}; agentflow analyse reads them.")


def _table(cells: Sequence[_Cell]) -> "Table":
    from rich.table import Table

    table = Table(
        "benchmark", "model", "metric", "score (95 %)", "tasks", "failed", "turns", "tokens", box=None
    )
    for cell in cells:
        summary = cell.run.summary
        if summary is None:
            table.add_row(cell.benchmark, cell.model, "", "not finished")
            continue
        table.add_row(
            cell.benchmark,
            cell.model,
            summary.metric,
            with_interval(summary),
            str(summary.tasks),
            str(summary.failed),
            f"{summary.turns.mean:.1f}",
            f"{summary.tokens:,}",
        )
    return table
