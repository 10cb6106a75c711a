"""`agentflow eval`: rollouts of several benchmarks and models, in one table."""

import argparse
import json
import logging
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec

from agentflow._terminal import printable
from agentflow.cli._display import RUN_LOGGER, RunView, open_display, set_up_logging, speed_fields
from agentflow.cli._output import UNLIMITED, Exit, print_wide, write_out
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.rollouts import (
    Assignment,
    RolloutConfig,
    RolloutRun,
    RolloutStatus,
    assign,
    load_rollout_config,
)
from agentflow.rollouts.analysis import with_interval
from agentflow.rollouts.benchmarks import HUB, benchmark_names, published_files
from agentflow.runs import Phase, ThroughputMeter
from agentflow.telemetry import Level, get_logger

if TYPE_CHECKING:
    from rich.table import Table


logger = get_logger(__name__)

OUTPUT = "eval_results"
NAME_CHARS = 60
CONCURRENCY = 2
"""Number of concurrent rollouts; each has its own engines, sandboxes and journal."""


class _Cell(NamedTuple):
    """Rollout of one benchmark with one model."""

    benchmark: str
    model: str
    run: RolloutRun
    assignment: Assignment


def run_eval(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    set_up_logging(Level.WARNING)
    evaluation = _EvaluationRun(_cells(arguments))
    start = {"rollouts": len(evaluation.cells), "output_dir": str(evaluation.folder)}
    with open_display(RunView(evaluation.status, start, _fields, _progress)) as show_progress:
        set_up_logging(Level.WARNING)
        if not sys.stderr.isatty():
            # The notes of single rollouts would bury those of the table.
            for name in (__name__, RUN_LOGGER):
                logging.getLogger(name).setLevel(Level.INFO.name)
        anyio.run(evaluation.run, show_progress)
    read = write_out(partial(_show, evaluation, as_json=arguments.json))
    if not read or evaluation.interrupted:
        return Exit.INTERRUPTED
    if evaluation.refused:
        return Exit.FAILED
    return Exit.STOPPED if evaluation.stopped else Exit.DONE


def evaluated_configs(arguments: argparse.Namespace) -> list[RolloutConfig]:
    """Return the settings of all rollouts of the command, in order.

    :raises ConfigurationError: one line, if they can't be used.
    """
    return [cell.run.config for cell in _cells(arguments)]


def _cells(arguments: argparse.Namespace) -> list[_Cell]:
    """Read and check all rollouts before the first one begins."""
    models = [name for name in arguments.models.split(",") if name.strip()]
    base = load_rollout_config(arguments.config, arguments.settings)
    source = arguments.data or base.data_path
    if source and arguments.benchmark == "all":
        data = _published(source)
    else:
        names = benchmark_names() if arguments.benchmark == "all" else [arguments.benchmark]
        data = dict.fromkeys(names, arguments.data)
    return [
        _cell(arguments, base, name, model, file) for name, file in data.items() for model in models or [""]
    ]


def _published(source: str) -> dict[str, str]:
    """Return the files of the benchmarks in a folder, and report those without one."""
    if not source.startswith(HUB) and not Path(source).exists():
        raise ConfigurationError(
            f"--data: {source}: no such folder; name one with the files of the benchmarks"
        )
    if source.startswith(HUB) or not Path(source).is_dir():
        raise ConfigurationError(
            "--data: one file can't be all benchmarks; name one of them, or a folder with their files"
        )
    published = published_files(Path(source), benchmark_names())
    if not published:
        raise ConfigurationError(
            f"--data: {source} has no file of a benchmark; call files or folders by its name, as in aime24.jsonl"
        )
    for name in benchmark_names():
        sys.stderr.write(f"{name}: {published.get(name, 'no file, left out')}\n")
    return {name: str(file) for name, file in published.items()}


def _cell(
    parsed: argparse.Namespace, base: RolloutConfig, benchmark: str, model: str, data: str | None
) -> _Cell:
    shown = model.strip() or ("offline" if base.offline else base.model_name)
    named = {
        "benchmark_name": benchmark,
        "number_of_tasks": parsed.limit,
        "samples": parsed.samples,
        "model_name": model.strip(),
        "data_path": data,
        "parallel": not base.model_fields_set & {"max_workers", "parallel"},
        "output_dir": str(Path(base.output_dir or OUTPUT) / _plain(benchmark) / _plain(shown)),
    }
    if base.journal is not None:
        # The rollouts share the journal, where each is a run of its own.
        named["run_name"] = f"{base.run_name}/{_plain(benchmark)}/{_plain(shown)}"
    arguments = {name: value for name, value in named.items() if value}
    config = load_rollout_config(parsed.config, parsed.settings, arguments)
    run = RolloutRun(config, resume=parsed.resume, retry_failed=parsed.retry_failed)
    return _Cell(benchmark, shown, run, assign(config))


def _plain(name: str) -> str:
    """Return a name that is valid on any file system."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem if "/" in name and Path(name).suffix else name)


class _Progress(NamedTuple):
    """Progress of all rollouts at one moment."""

    phase: Phase
    seconds: float
    finished: int
    """Number of rollouts that are over."""
    cells: list[tuple[_Cell, RolloutStatus]]
    """The rollouts."""
    rate: float
    """Tasks finished per second; 0: none yet."""
    remaining: float | None
    """Estimated seconds to the end; `None`: unknown."""

    @property
    def tokens(self) -> int:
        """Tokens of all rollouts."""
        return sum(status.tokens for _, status in self.cells)

    @property
    def cost(self) -> float:
        """Their cost, of models with prices."""
        return sum(status.cost for _, status in self.cells)

    @property
    def failures(self) -> dict[str, int]:
        """Failures of all rollouts by kind."""
        counts: Counter[str] = Counter()
        for _, status in self.cells:
            counts.update(status.failures)
        return dict(counts.most_common())

    @property
    def working(self) -> list[tuple[_Cell, RolloutStatus]]:
        """The rollouts in work."""
        return [(cell, status) for cell, status in self.cells if status.phase not in _IDLE]


_IDLE: Final = frozenset({Phase.STARTING, Phase.DONE, Phase.STOPPED})


class _EvaluationRun:
    """All rollouts of the table."""

    def __init__(self, cells: Sequence[_Cell]) -> None:
        self.cells = cells
        """The rollouts, in order."""
        self.folder = cells[0].run.config.output.parent.parent
        """Directory of their output directories."""
        self.stopped: list[str] = []
        """Reasons of rollouts that ended early."""
        self.refused: list[str] = []
        """Reasons of rollouts that could not begin."""
        self.interrupted = False
        """A signal was received."""
        self._limit = anyio.Semaphore(CONCURRENCY)
        self._began = time.monotonic()
        self._meter = ThroughputMeter(time.monotonic)
        self._meter.start(0)
        self._finished = 0
        self._ending = False

    def status(self) -> _Progress:
        """Return the current progress."""
        done = self._finished == len(self.cells)
        stopped = self.interrupted or bool(self.stopped)
        over = Phase.STOPPED if stopped else Phase.DONE
        phase = over if done else Phase.STOPPING if self._ending else Phase.GROWING
        statuses = [(cell, cell.run.status()) for cell in self.cells]
        self._meter.record(sum(status.finished for _, status in statuses))
        # A rollout that has not begun has all of its tasks before it.
        left = sum(
            len(cell.assignment.tasks) * cell.assignment.samples - (status.done if status.seeds else 0)
            for cell, status in statuses
            if status.phase not in (Phase.DONE, Phase.STOPPED)
        )
        remaining = self._meter.remaining(left, sum(status.active for _, status in statuses))
        seconds = time.monotonic() - self._began
        return _Progress(phase, seconds, self._finished, statuses, self._meter.rate, remaining)

    async def run(self, show_progress: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run all rollouts.

        :raises ConfigurationError: with the first reason, if none could begin.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            tasks.start_soon(show_progress)
            async with anyio.create_task_group() as rollouts:
                for cell in self.cells:
                    rollouts.start_soon(self._work, cell)
            tasks.cancel_scope.cancel()
        if len(self.refused) == len(self.cells):
            raise ConfigurationError(self.refused[0])

    async def _work(self, cell: _Cell) -> None:
        async with self._limit:
            try:
                if not self._ending:
                    await cell.run.run(cell.assignment)
            except RunStopped as stopped:
                self.stopped.append(f"{cell.benchmark}, {cell.model}: {stopped.message}")
                if stopped.cause is StopCause.INTERRUPTED and not self._ending:
                    self._stop("requested by agentflow ctl")
            except ConfigurationError as error:
                # Another model or benchmark may work.
                self.refused.append(str(error))
            finally:
                self._finished += 1
        if cell.run.summary is not None:
            score = with_interval(cell.run.summary)
            logger.info("finished", benchmark=cell.benchmark, model=cell.model, score=score)

    async def _listen(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                if self.interrupted:
                    for cell in self.cells:
                        cell.run.stop_now()
                self.interrupted = True
                self._stop(f"received {number.name}")

    def _stop(self, why: str) -> None:
        """Stop all rollouts, and begin no other one."""
        self._ending = True
        for cell in self.cells:
            cell.run.stop(why)


def _fields(progress: _Progress) -> dict[str, object]:
    working = [
        f"{cell.benchmark}, {cell.model}: {status.done} of {status.seeds}"
        for cell, status in progress.working
    ]
    return {
        "phase": progress.phase.value,
        "rollouts": f"{progress.finished} of {len(progress.cells)}",
        "in_work": working,
        **speed_fields(progress.rate, progress.remaining),
        "failures": progress.failures,
        "used": progress.tokens,
        "cost": round(progress.cost, 6),
        "seconds": round(progress.seconds, 1),
    }


def _progress(progress: _Progress) -> "Table":
    from agentflow.runs import failures_text, one_line, progress_table, speed_text, usage_text

    table = progress_table(
        progress.phase.value,
        len(progress.cells),
        progress.finished,
        speed=speed_text(progress.rate, progress.remaining),
        model=usage_text(progress.tokens, progress.cost),
        failures=failures_text(progress.failures),
    )
    for cell, status in progress.working:
        score = "" if status.score is None else f", {status.score:.1%}"
        line = f"{one_line(cell.model, NAME_CHARS)}: {status.done} of {status.seeds} tasks{score}"
        table.add_row(one_line(cell.benchmark, NAME_CHARS), line)
    return table


def _show(evaluation: _EvaluationRun, *, as_json: bool) -> None:
    cells = evaluation.cells
    # A model without a key is refused once for each benchmark.
    reasons = Counter(evaluation.refused)
    refused = [f"{reason}{f' ({count} rollouts)' if count > 1 else ''}" for reason, count in reasons.items()]
    for line in [*evaluation.stopped, *refused]:
        sys.stderr.write(f"agentflow: {printable(line)}\n")
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
    print_wide(
        _table(cells), f"\nFiles below {evaluation.folder}; agentflow analyse reads them.", width=UNLIMITED
    )


def _table(cells: Sequence[_Cell]) -> "Table":
    from rich.table import Table

    table = Table(box=None)
    for column in ("benchmark", "model", "metric"):
        table.add_column(column, overflow="fold")
    for column in ("score (95 %)", "tasks", "failed", "turns", "tokens"):
        table.add_column(column, no_wrap=True)
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
