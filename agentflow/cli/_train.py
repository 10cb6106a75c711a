"""`agentflow train`: a policy trained on tasks."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from agentflow.cli._display import RunView, progress_table
from agentflow.cli._output import Exit
from agentflow.cli._program import watch_run
from agentflow.learner import TrainConfig, TrainOutcome, TrainRun, TrainStatus, load_train_config
from agentflow.runs import render_config

if TYPE_CHECKING:
    from rich.table import Table


def run_train(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    config = load_train_config(
        given.config, given.settings, {"backbone": given.backbone} if given.backbone else {}
    )
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    if config.backbone == "debug":
        # No display and no signal handlers, so that breakpoints work.
        show = partial(print, file=sys.stderr if given.json else sys.stdout, flush=True)
        outcome = anyio.run(TrainRun(config, say=show).run)
        if given.json:
            record = {"status": 0, "stopped": None, "output_dir": str(config.output), "outcome": outcome}
            sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
        return Exit.DONE
    return watch_training(TrainRun(config, resume=given.resume), as_json=given.json)


def watch_training(run: TrainRun, *, as_json: bool) -> int:
    """Run a training with a progress display and return the exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    outcomes: list[TrainOutcome] = []

    async def work() -> None:
        outcomes.append(await run.run())

    def fields() -> dict[str, object]:
        return {"output_dir": str(run.config.output), "outcome": outcomes[0] if outcomes else None}

    def show() -> None:
        if outcomes:
            _show(outcomes[0])

    view = RunView(run.status, _start(run.config), _fields, _table)
    return watch_run(run, work, view, as_json=as_json, fields=fields, show=show)


def _show(outcome: TrainOutcome) -> None:
    if not outcome.policy:
        return
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


def _fields(status: TrainStatus) -> dict[str, object]:
    return {
        "phase": status.phase.value,
        "step": status.step,
        "steps": status.steps,
        "episodes": status.episodes,
        "failed": sum(status.failed.values()),
        "reward": _rounded(status.reward),
        "validation": _rounded(status.validation),
        "seconds": round(status.seconds, 1),
    }


def _table(status: TrainStatus) -> "Table":
    table = progress_table(status.phase.value, status.steps or 0, status.step)
    of = "" if status.steps is None else f" of {status.steps}"
    failed = ", ".join(f"{count} {kind}" for kind, count in status.failed.items()) or "none"
    table.add_row("steps", f"{status.step}{of} made")
    table.add_row("episodes", f"{status.episodes} run, left out: {failed}")
    table.add_row("reward", f"{_percent(status.reward)}, on held-out tasks {_percent(status.validation)}")
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _percent(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.1%}"
