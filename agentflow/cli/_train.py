"""`agentflow train`: a policy trained on tasks, also by the `learner` of a synthesis."""

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from agentflow._terminal import printable
from agentflow._typeguards import is_mapping
from agentflow.cli._display import RunView, speed_fields
from agentflow.cli._output import Exit, print_json
from agentflow.cli._program import check_trainer, watch_run
from agentflow.cli._serve_model import serve_until_signal, show_server
from agentflow.errors import ConfigurationError
from agentflow.learner import (
    TrainConfig,
    TrainOutcome,
    TrainRun,
    TrainStatus,
    claimed_engine,
    load_train_config,
)
from agentflow.runs import Phase, RunConfig, render_config
from agentflow.serving import ModelServer

if TYPE_CHECKING:
    from rich.table import Table

    from agentflow.synthesis import SynthesisConfig


def run_train(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    if arguments.serve:
        return _serve_engine(load_train_config(arguments.config, arguments.settings), as_json=arguments.json)
    check_trainer("agentflow train")
    config = load_train_config(
        arguments.config, arguments.settings, {"backbone": arguments.backbone} if arguments.backbone else {}
    )
    if arguments.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    if config.backbone == "debug":
        # No display and no signal handlers, so that breakpoints work.
        output = sys.stderr if arguments.json else sys.stdout

        def show(line: str) -> None:
            print(printable(line), file=output, flush=True)

        outcome = anyio.run(TrainRun(config, say=show).run)
        if arguments.json:
            output_dir = str(config.output)
            print_json({"status": 0, "stopped": None, "output_dir": output_dir, "outcome": outcome})
        return Exit.DONE
    run = TrainRun(config, resume=arguments.resume)
    if config.policy is not None and config.policy.processes > 1 and "WORLD_SIZE" not in os.environ:
        anyio.run(run.prepare)
        _start_processes(config.policy.processes)
    return watch_training(run, as_json=arguments.json)


def _serve_engine(config: TrainConfig, *, as_json: bool) -> int:
    """Serve the engine of a training until Ctrl-C and return the exit status."""
    with claimed_engine(config) as (settings, key):

        async def serve(server: ModelServer) -> None:
            show_server(server, str(key), as_json)
            await anyio.sleep_forever()

        return anyio.run(serve_until_signal, settings, serve)


def _start_processes(count: int) -> NoReturn:
    """Replace this process by torchrun with the same command in several processes."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    sys.stdout.flush()
    # The same words: a script, or `-m` with a module, which torchrun understands, too.
    os.execv(sys.executable, [sys.executable, *torchrun, *sys.orig_argv[1:]])


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

    view = RunView(run.status, _start(run.config), training_fields, training_view)
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


_ROWS = (Phase.ROLLOUTS, Phase.STEP, Phase.PUBLICATION, Phase.VALIDATION)
"""Phases of a step, each with a bar."""


def training_fields(status: TrainStatus) -> dict[str, object]:
    """Return the fields of a progress line."""
    return {
        "phase": status.phase.value,
        "phase_seconds": round(status.phase_seconds, 1),
        **({"phase_episodes": f"{status.phase_episodes}/{status.phase_total}"} if status.phase_total else {}),
        "step": status.step,
        "steps": status.steps,
        "episodes": status.episodes,
        "failed": sum(status.failed.values()),
        "reward": _rounded(status.reward),
        "validation": _rounded(status.validation),
        "no_signal": _rounded(status.no_signal),
        "sampled_per_second": round(status.tokens_per_second, 1),
        **speed_fields(status.rate, status.remaining),
        "failures": status.failed,
        "used": status.tokens,
        "cost": round(status.cost, 6),
        "seconds": round(status.seconds, 1),
    }


def training_view(status: TrainStatus) -> "Table":
    """Return the progress of a training as a table."""
    from agentflow.runs import failures_text, progress_table, speed_text, usage_text

    def phase_row(phase: Phase) -> tuple[float, float, str]:
        last = status.durations.get(phase.value)
        if phase is not status.phase:
            return 0, 1, "none yet" if last is None else f"{last:.1f} s last time"
        seconds, before = status.phase_seconds, "" if last is None else f", {last:.1f} s last time"
        if status.phase_total:
            count = f"{status.phase_episodes} of {status.phase_total} episodes, "
            return status.phase_episodes, status.phase_total, f"{count}{seconds:.1f} s{before}"
        # The time that it took before is the best estimate of its progress.
        return min(seconds, last or 0.0), last or 1.0, f"{seconds:.1f} s{before}"

    of = "" if status.steps is None else f" of {status.steps}"
    return progress_table(
        status.phase.value,
        status.steps or 0,
        status.step,
        steps=f"{status.step}{of} made",
        **{phase.value: phase_row(phase) for phase in _ROWS},
        speed=speed_text(status.rate, status.remaining),
        episodes=f"{status.episodes} run",
        sampling=f"{status.tokens_per_second:.1f} tokens/s; groups without signal: {_percent(status.no_signal)}",
        reward=f"{_percent(status.reward)}, on held-out tasks {_percent(status.validation)}",
        failures=failures_text(status.failed),
        **({"model": usage_text(status.tokens, status.cost)} if status.tokens else {}),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _percent(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.1%}"


_NOT_OF_EPISODES = frozenset({"output_dir", "journal", "run_name", "max_seconds", "tokens"})


def trains_on_own_tasks(config: "SynthesisConfig") -> bool:
    """Return whether the `learner` of a synthesis names tasks, so that no questions are written."""
    tasks = _section(config.learner or {}, "tasks")
    return bool(tasks.get("data_path") or tasks.get("reader") or tasks.get("benchmark_name"))


def training_of(config: "SynthesisConfig") -> TrainConfig:
    """Return the settings of the training of a synthesis; `learner` overrides those of the synthesis.

    Tasks that it names grow trees of the shape of the synthesis.

    :raises ConfigurationError: one line, if a setting can't be used.
    """
    learner = config.learner or {}
    passed_on = {*RunConfig.model_fields, "generator_model"} - _NOT_OF_EPISODES
    shared = config.model_dump(include=passed_on & config.given_keys())
    growth = {
        "max_depth": config.max_depth,
        "branching_factor": config.branching_factor,
        "depth_threshold": config.depth_threshold,
        "tips": config.sampling_tips,
        "task_description": config.seed_description,
    }
    settings = {
        "output_dir": str(config.output),
        **learner,
        "episodes": shared | _section(learner, "episodes"),
    }
    if trains_on_own_tasks(config):
        settings["growth"] = growth | _section(learner, "growth")
    return load_train_config(None, (), settings)


def _section(learner: Mapping[str, Any], name: str) -> dict[str, Any]:
    section: object = learner.get(name) or {}
    if not is_mapping(section):
        raise ConfigurationError(f"learner.{name}: not a mapping; write names with values")
    return dict(section)
