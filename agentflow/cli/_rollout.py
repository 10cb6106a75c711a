"""`agentflow rollout`: tasks worked on and scored, with somebody watching."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agentflow.cli._exits import Exit
from agentflow.cli._program import Program, ending_of, run_program, write_out
from agentflow.cli._screen import Watched, consumed_fields, consumed_words, progress_table, screen_for
from agentflow.errors import RunStopped
from agentflow.rollout import (
    RESULTS,
    SUMMARY,
    TRAJECTORIES,
    RolloutRun,
    RolloutStanding,
    assign,
    load_config,
    render,
    render_config,
)

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_wide", "run_rollout"]

WIDTH = 110


def run_rollout(given: argparse.Namespace) -> int:
    """Do what the arguments say; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
    """
    named = {"data_path": given.data, "benchmark_name": given.benchmark}
    config = load_config(given.config, given.settings, {name: said for name, said in named.items() if said})
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    assignment = assign(config)
    run = RolloutRun(config, resume=given.resume)
    with screen_for(Watched(run.standing, _start(run), _fields, _table)) as screen:
        program = Program(run, partial(run.run, assignment), screen)
        run_program(program)
    status = program.status()
    read = write_out(lambda: _say(run, program.ended, status, as_json=given.json))
    return status if read else Exit.INTERRUPTED


def print_wide(*things: object) -> None:
    """Print on stdout, in full lines where that is no terminal.

    :raises BrokenPipeError: if nobody reads it.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDTH)
    # At once and by ourselves: rich would end the program where nobody reads it.
    with console.capture() as captured:
        for thing in things:
            console.print(thing)
    sys.stdout.write(captured.get())


def _say(run: RolloutRun, ended: RunStopped | None, status: Exit, *, as_json: bool) -> None:
    """What there is now, on stdout; why it ended early, on stderr."""
    if ended is not None:
        sys.stderr.write(f"agentflow: {ended.message}\n")
    if as_json:
        said = {
            **ending_of(ended, status),
            "nothing_to_do": run.found_nothing_to_do,
            "output_dir": str(run.place.folder),
            "summary": run.summary,
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    elif run.summary is not None:
        config = run.config
        saved = {
            RESULTS: config.save_results, TRAJECTORIES: config.save_trajectories, SUMMARY: config.save_summary,
        }  # fmt: skip
        files = ", ".join(name for name, there in saved.items() if there) or "none but the journal"
        nothing = (
            ["Nothing to do: every task is finished. The files hold:"] if run.found_nothing_to_do else []
        )
        print_wide(*nothing, render(run.summary), f"\nFiles in {run.place.folder}: {files}")


def _start(run: RolloutRun) -> dict[str, object]:
    config = run.config
    return {
        "output_dir": str(run.place.folder),
        "model": config.model.name,
        "agent": config.agent,
        "max_turns": config.turns,
        "workers": config.workers,
    }


def _fields(standing: RolloutStanding) -> dict[str, object]:
    return {
        "phase": standing.phase.value,
        "tasks": standing.tasks,
        "done": standing.done,
        "at_work": standing.at_work,
        "failed": standing.failed,
        "score": None if standing.score is None else round(standing.score, 4),
        **consumed_fields(standing),
    }


def _table(standing: RolloutStanding) -> "Table":
    table = progress_table(standing.phase.value, standing.tasks, standing.done)
    table.add_row("tasks", f"{standing.done} of {standing.tasks} done, {standing.at_work} in work")
    score = "none yet" if standing.score is None else f"{standing.score:.1%}"
    table.add_row("score", f"{score}, {standing.failed} failed")
    table.add_row("model", consumed_words(standing))
    return table
