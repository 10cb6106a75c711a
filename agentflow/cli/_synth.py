"""`agentflow synth`: a synthesis from its settings to its files."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from agentflow.cli._display import RunView, run_fields, run_table
from agentflow.cli._output import Exit
from agentflow.cli._program import watch_run
from agentflow.cli._summary import print_summary
from agentflow.runs import render_config
from agentflow.synthesis import SynthesisConfig, load_synthesis_config
from agentflow.synthesis.pipeline import SynthesisRun, SynthesisStatus, seeds_for

if TYPE_CHECKING:
    from rich.table import Table


def run_synth(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    config = load_synthesis_config(given.config, given.settings)
    if config.learner is not None:
        return _train(config, given)
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    seeds = seeds_for(config)
    run = SynthesisRun(config, resume=given.resume)

    def fields() -> dict[str, object]:
        output_dir = str(run.directory.folder)
        return {"nothing_to_do": run.nothing_to_do, "output_dir": output_dir, "report": run.report}

    def show() -> None:
        if run.report is not None:
            print_summary(run, run.report)

    view = RunView(run.status, _start(run), _fields, _table)
    return watch_run(run, partial(run.run, seeds), view, as_json=given.json, fields=fields, show=show)


def _train(config: SynthesisConfig, given: argparse.Namespace) -> int:
    """Train the planner on the trees."""
    from agentflow.cli._train import watch_training
    from agentflow.cli._training_on_trees import tasks_of, training_of
    from agentflow.learner import TrainRun

    training = training_of(config)
    if given.print_config:
        sys.stdout.write(render_config(training))
        return Exit.DONE
    run = TrainRun(training, tasks=tasks_of(config), resume=given.resume)
    return watch_training(run, as_json=given.json)


def _start(run: SynthesisRun) -> dict[str, object]:
    config = run.config
    return {
        "output_dir": str(run.directory.folder),
        "model": config.model.name,
        "max_depth": config.max_depth,
        "branching_factor": config.branching_factor,
    }


def _fields(status: SynthesisStatus) -> dict[str, object]:
    return run_fields(
        status,
        seeds=status.seeds,
        done=status.done,
        open_trees=status.active,
        nodes=sum(status.nodes.values()),
        questions=status.questions,
        rejected=status.rejected,
    )


def _table(status: SynthesisStatus) -> "Table":
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in status.nodes.items())
    return run_table(
        status,
        seeds=f"{status.done} of {status.seeds} done, {status.active} growing",
        nodes=f"{sum(status.nodes.values())}  {verdicts}",
        questions=f"{status.questions} accepted, {status.rejected} drafts rejected",
    )
