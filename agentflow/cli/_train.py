"""`agentflow train`: a policy trained on tasks, with somebody watching."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from agentflow.cli._exits import Exit
from agentflow.cli._program import Program, ending_of, run_program, write_out
from agentflow.cli._screen import Watched, progress_table, screen_for
from agentflow.errors import RunStopped
from agentflow.learner import Outcome, TrainConfig, TrainRun, TrainStanding, load_config
from agentflow.runs import render_config

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run_train", "watch_training"]


def run_train(given: argparse.Namespace) -> int:
    """Do what the arguments say; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
    """
    config = load_config(given.config, given.settings, {"backbone": given.backbone} if given.backbone else {})
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    if config.backbone == "debug":
        # Nothing between a breakpoint and its terminal: no screen, no signals of our own.
        show = partial(print, file=sys.stderr if given.json else sys.stdout, flush=True)
        found = anyio.run(TrainRun(config, say=show).run)
        _say(config, found, None, Exit.DONE, as_json=given.json)
        return Exit.DONE
    return watch_training(TrainRun(config, resume=given.resume), as_json=given.json)


def watch_training(run: TrainRun, *, as_json: bool) -> int:
    """Do a training run with somebody watching; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
    """
    config = run.config
    outcomes: list[Outcome] = []

    async def work() -> None:
        outcomes.append(await run.run())

    with screen_for(Watched(run.standing, _start(config), _fields, _table)) as screen:
        program = Program(run, work, screen)
        run_program(program)
    status = program.status()
    outcome = outcomes[0] if outcomes else None
    read = write_out(lambda: _say(config, outcome, program.ended, status, as_json=as_json))
    return status if read else Exit.INTERRUPTED


def _say(
    config: TrainConfig, outcome: Outcome | None, ended: RunStopped | None, status: Exit, *, as_json: bool
) -> None:
    """What there is now, on stdout; why it ended early, on stderr."""
    if ended is not None:
        sys.stderr.write(f"agentflow: {ended.message}\n")
    if as_json:
        said = {**ending_of(ended, status), "output_dir": str(config.output), "outcome": outcome}
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    elif outcome is not None and outcome.policy:
        score = outcome.figures.get("validation/score")
        held_out = "" if score is None else f", {score:.1%} on held-out tasks"
        sys.stdout.write(
            f"{outcome.steps} steps{held_out}. The trained model is in {outcome.policy}; "
            f"figures and checkpoints are in {outcome.output_dir}.\n"
        )


def _start(config: TrainConfig) -> dict[str, object]:
    return {
        "output_dir": str(config.output),
        "model": "" if config.policy is None else config.policy.model,
        "loss": config.loss.name,
        "mode": config.schedule.mode,
        "tasks_per_step": config.schedule.tasks_per_step,
        "episodes_per_task": config.schedule.episodes_per_task,
    }


def _fields(standing: TrainStanding) -> dict[str, object]:
    return {
        "phase": standing.phase.value,
        "step": standing.step,
        "steps": standing.steps,
        "episodes": standing.episodes,
        "failed": sum(standing.failed.values()),
        "reward": _rounded(standing.reward),
        "validation": _rounded(standing.validation),
        "seconds": round(standing.seconds, 1),
    }


def _table(standing: TrainStanding) -> "Table":
    table = progress_table(standing.phase.value, standing.steps or 0, standing.step)
    of = "" if standing.steps is None else f" of {standing.steps}"
    failed = ", ".join(f"{count} {kind}" for kind, count in standing.failed.items()) or "none"
    table.add_row("steps", f"{standing.step}{of} made")
    table.add_row("episodes", f"{standing.episodes} played, left out: {failed}")
    table.add_row("reward", f"{_percent(standing.reward)}, on held-out tasks {_percent(standing.validation)}")
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _percent(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.1%}"
