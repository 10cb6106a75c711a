"""`agentflow synth`: a synthesis from its settings to its files, with somebody watching."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agentflow.cli._exits import Exit
from agentflow.cli._program import Program, ending_of, run_program, write_out
from agentflow.cli._screen import Watched, consumed_fields, consumed_words, progress_table, screen_for
from agentflow.cli._summary import print_summary
from agentflow.errors import RunStopped
from agentflow.synthesis import SynthesisConfig, load_config, render_config
from agentflow.synthesis.pipeline import Standing, SynthesisRun, seeds_for

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run_synth"]


def run_synth(given: argparse.Namespace) -> int:
    """Do what the arguments say; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
    """
    config = load_config(given.config, given.settings)
    if config.learner is not None:
        return _train(config, given)
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    seeds = seeds_for(config)
    run = SynthesisRun(config, resume=given.resume)
    with screen_for(Watched(run.standing, _start(run), _fields, _table)) as screen:
        program = Program(run, partial(run.run, seeds), screen)
        run_program(program)
    status = program.status()
    read = write_out(lambda: _say(run, program.ended, status, as_json=given.json))
    return status if read else Exit.INTERRUPTED


def _train(config: SynthesisConfig, given: argparse.Namespace) -> int:
    """The same trees, for the planner to learn from."""
    from agentflow.cli._train import watch_training
    from agentflow.cli._training_on_trees import tasks_of, training_of
    from agentflow.learner import TrainRun

    training = training_of(config)
    if given.print_config:
        sys.stdout.write(render_config(training))
        return Exit.DONE
    run = TrainRun(training, tasks=tasks_of(config), resume=given.resume)
    return watch_training(run, as_json=given.json)


def _say(run: SynthesisRun, ended: RunStopped | None, status: Exit, *, as_json: bool) -> None:
    """What there is now, on stdout; why it ended early, on stderr."""
    if ended is not None:
        sys.stderr.write(f"agentflow: {ended.message}\n")
    if as_json:
        said = {
            **ending_of(ended, status),
            "nothing_to_do": run.found_nothing_to_do,
            "output_dir": str(run.place.folder),
            "report": run.report,
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    elif run.report is not None:
        print_summary(run, run.report)


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
        **consumed_fields(standing),
    }


def _table(standing: Standing) -> "Table":
    table = progress_table(standing.phase.value, standing.seeds, standing.done)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in standing.nodes.items())
    table.add_row("seeds", f"{standing.done} of {standing.seeds} done, {standing.open_trees} growing")
    table.add_row("nodes", f"{sum(standing.nodes.values())}  {verdicts}")
    table.add_row("questions", f"{standing.questions} accepted, {standing.rejected} drafts rejected")
    table.add_row("model", consumed_words(standing))
    return table
