"""`agentflow rollout`: tasks worked on and scored."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentflow.cli._display import RunView, run_fields
from agentflow.cli._output import Exit, print_wide
from agentflow.cli._program import watch_run
from agentflow.readers import ReaderSettings, names_reader, prepare_tasks, with_own_scorers
from agentflow.rollouts import (
    RESULTS,
    SUMMARY,
    TRAJECTORIES,
    Assignment,
    RolloutConfig,
    RolloutRun,
    RolloutStatus,
    assign,
    load_rollout_config,
)
from agentflow.rollouts.analysis import render_summary
from agentflow.runs import render_config

if TYPE_CHECKING:
    from rich.table import Table


def run_rollout(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    named = {"data_path": arguments.data, "benchmark_name": arguments.benchmark}
    config = load_rollout_config(
        arguments.config, arguments.settings, {name: value for name, value in named.items() if value}
    )
    if arguments.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    assignment = assign_tasks(config)
    run = RolloutRun(config, resume=arguments.resume, retry_failed=arguments.retry_failed)

    def fields() -> dict[str, object]:
        output_dir = str(run.directory.folder)
        run_fields = {"nothing_to_do": run.nothing_to_do, "output_dir": output_dir, "notes": run.notes}
        return {**run_fields, "summary": run.summary}

    view = rollout_view(run)
    work = partial(run.run, assignment)
    return watch_run(run, work, view, as_json=arguments.json, fields=fields, show=partial(_show, run))


def assign_tasks(config: RolloutConfig) -> Assignment:
    """Return the tasks and the metric that the settings of a rollout select; `data_path` may name a reader.

    See docs/readers.md.

    :raises ConfigurationError: one line with the place, if they can't be read.
    """
    if config.data_path is None or config.benchmark_name is not None or not names_reader(config.data_path):
        return assign(config)
    reader = ReaderSettings(source=config.data_path, limit=config.number_of_tasks)
    tasks = prepare_tasks(reader).tasks
    return assign(with_own_scorers(config, tasks), tasks)


def rollout_view(run: RolloutRun) -> RunView[RolloutStatus]:
    """Return how the progress of a rollout is shown."""
    return RunView(run.status, _start(run), _fields, partial(_table, run.notes))


def _show(run: RolloutRun) -> None:
    if run.summary is None:
        return
    config = run.config
    saved = {
        RESULTS: config.save_results, TRAJECTORIES: config.save_trajectories, SUMMARY: config.save_summary,
    }  # fmt: skip
    files = ", ".join(name for name, written in saved.items() if written) or "none but the journal"
    nothing = ["Nothing to do: every task is finished. The files contain:"] if run.nothing_to_do else []
    print_wide(
        *nothing, render_summary(run.summary), *run.notes, f"\nFiles in {run.directory.folder}: {files}"
    )


def _start(run: RolloutRun) -> dict[str, object]:
    config = run.config
    return {
        "output_dir": str(run.directory.folder),
        "model": config.model.name,
        "agent": config.agent,
        "max_turns": config.turns,
        "workers": config.workers,
    }


def _fields(status: RolloutStatus) -> dict[str, object]:
    return run_fields(
        status,
        tasks=status.seeds,
        done=status.done,
        at_work=status.active,
        failed=status.failed,
        score=None if status.score is None else round(status.score, 4),
        **({"not_scored": status.unjudged, "reason": status.trouble} if status.unjudged else {}),
    )


def _table(notes: Sequence[str], status: RolloutStatus) -> "Table":
    from agentflow.runs import run_table

    score = "none yet" if status.score is None else f"{status.score:.1%}"
    not_scored = {"not scored": f"{status.unjudged}, {status.trouble}"} if status.unjudged else {}
    return run_table(
        status,
        notes,
        **not_scored,
        tasks=f"{status.done} of {status.seeds} done, {status.active} in work",
        score=f"{score}, {status.failed} failed",
    )
