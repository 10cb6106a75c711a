"""`agentflow synth`: a synthesis from its settings to its files."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.cli._display import RunView, run_fields
from agentflow.cli._output import Exit, buffered_console
from agentflow.cli._program import check_trainer, watch_run
from agentflow.errors import ConfigurationError
from agentflow.runs import render_config
from agentflow.synthesis import (
    PAIRS,
    REPORT,
    TASKS,
    TRAJECTORIES,
    TREES,
    Report,
    SynthesisConfig,
    load_synthesis_config,
)
from agentflow.synthesis.pipeline import SynthesisRun, SynthesisStatus, render_report, seeds_for, status_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from agentflow.learner import FlywheelResult, FlywheelRun, FlywheelStatus


def run_synth(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    config = load_synthesis_config(arguments.config, arguments.settings)
    if config.learner is not None:
        return _learn(config, arguments)
    if arguments.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    seeds = seeds_for(config)
    run = SynthesisRun(config, resume=arguments.resume, retry_failed=arguments.retry_failed)

    def fields() -> dict[str, object]:
        output_dir = str(run.directory.folder)
        run_fields = {"nothing_to_do": run.nothing_to_do, "output_dir": output_dir, "notes": run.notes}
        return {**run_fields, "report": run.report}

    def show() -> None:
        if run.report is not None:
            print_summary(run, run.report)

    return watch_run(
        run, partial(run.run, seeds), synth_view(run), as_json=arguments.json, fields=fields, show=show
    )


def synth_view(run: SynthesisRun) -> RunView[SynthesisStatus]:
    """Return how the progress of a synthesis is shown."""
    return RunView(run.status, _start(run), synth_fields, partial(status_table, run.notes))


def _learn(config: SynthesisConfig, arguments: argparse.Namespace) -> int:
    """Run the rounds of a synthesis and a training, or the training alone if it has tasks of its own."""
    check_trainer("agentflow synth")
    from agentflow.cli._train import training_of, trains_on_own_tasks, watch_training
    from agentflow.learner import FlywheelRun, TrainRun

    if arguments.retry_failed:
        raise ConfigurationError("--retry-failed: a run with a learner has no such seeds; leave it out")
    training = training_of(config)
    alone = trains_on_own_tasks(config)
    if arguments.print_config:
        shown = training if alone else config.model_copy(update={"learner": training.model_dump()})
        sys.stdout.write(render_config(shown))
        return Exit.DONE
    if alone:
        return watch_training(TrainRun(training, resume=arguments.resume), as_json=arguments.json)
    run = FlywheelRun(config, training, seeds_for(config), resume=arguments.resume)

    def fields() -> dict[str, object]:
        return {"output_dir": str(run.folder), "result": run.result}

    def show() -> None:
        with buffered_console(WIDTH) as console:
            print_rounds(console, run.result, run.folder)

    view = RunView(run.status, _flywheel_start(run), _flywheel_fields, _flywheel_table)
    return watch_run(run, run.run, view, as_json=arguments.json, fields=fields, show=show)


def _flywheel_start(run: "FlywheelRun") -> dict[str, object]:
    policy, config = run.training.policy, run.config
    return {
        "output_dir": str(run.folder),
        "policy": "" if policy is None else policy.model,
        "rounds": config.rounds,
        "steps": run.training.schedule.steps,
    }


def _flywheel_fields(status: "FlywheelStatus") -> dict[str, object]:
    from agentflow.cli._train import training_fields

    inner = {
        **({} if status.synthesis is None else synth_fields(status.synthesis)),
        **({} if status.training is None else training_fields(status.training)),
    }
    return {
        **inner,
        "phase": status.phase.value,
        "round": f"{status.round}/{status.rounds}",
        "stage": status.stage,
        "seconds": round(status.seconds, 1),
    }


def _flywheel_table(status: "FlywheelStatus") -> "Table":
    from agentflow.cli._train import training_view
    from agentflow.runs import progress_table

    if status.synthesis is not None:
        table = status_table([], status.synthesis)
    elif status.training is not None:
        table = training_view(status.training)
    else:
        table = progress_table(status.phase.value, status.rounds, max(0, status.round - 1))
    table.add_row("round", f"{status.round} of {status.rounds}: {status.stage}")
    return table


def print_rounds(console: "Console", result: "FlywheelResult", folder: Path) -> None:
    """Print the rounds of a run as a table, and the names of its files."""
    from rich.table import Table

    if not result.rounds:
        console.print("No round is finished.")
        return
    table = Table("round", "grown by", "pairs", "in the window", "steps", "held-out", "gain", box=None)
    for finished in result.rounds:
        gain, low, high = finished.gain
        table.add_row(
            str(finished.number),
            f"version {finished.version}",
            f"{finished.pairs} of {finished.seeds} seeds",
            str(len(finished.chosen)),
            str(finished.steps),
            f"{finished.held_out:.1%}",
            f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
        )
    console.print(f"{result.held_out_pairs} held-out pairs, version 0: {result.baseline:.1%}")
    console.print(table)
    console.print(f"\nFiles in {folder}: rounds.json, round-*/, held-out/, training/, report.html")


def _start(run: SynthesisRun) -> dict[str, object]:
    config = run.config
    return {
        "output_dir": str(run.directory.folder),
        "model": config.model.name,
        "max_depth": config.max_depth,
        "branching_factor": config.branching_factor,
    }


def synth_fields(status: SynthesisStatus) -> dict[str, object]:
    """Return the fields of a progress line."""
    return run_fields(
        status,
        seeds=status.seeds,
        done=status.done,
        open_trees=status.active,
        nodes=sum(status.nodes.values()),
        questions=status.questions,
        rejected=status.rejected,
    )


WIDTH = 100


QUOTE_WIDTH = 160


SAMPLED = 20
"""Number of pairs of which one is shown."""


def print_summary(run: SynthesisRun, report: Report) -> None:
    """Print it on stdout.

    :raises BrokenPipeError: if the reader has closed it.
    """
    with buffered_console(WIDTH) as console:
        if run.nothing_to_do:
            console.print("Nothing to do: every seed is finished. The files contain:", style="bold")
        console.print(render_report(report))
        for note in run.notes:
            console.print(note)
        folder = run.directory.folder
        _print_sample(console, folder)
        first = [PAIRS, TRAJECTORIES, TREES]
        others = sorted(file.name for file in folder.glob("*.jsonl") if file.name not in first)
        images = ["images/"] if (folder / "images").is_dir() else []
        names = [*first, *others, *images, REPORT]
        console.print(f"\nFiles in {folder}: {', '.join(names)}")


def _print_sample(console: "Console", folder: Path) -> None:
    if (folder / TASKS).exists() and (task := next(_records(folder / TASKS), None)):
        console.print("\nOne of the tasks", style="bold")
        console.print(f"  {task['instruction']}")
        console.print("\nChecked afterwards", style="bold")
        for predicate in task["verifier"]:
            console.print(f"  - {_short(predicate['says'])}")
        return
    # A chain shows best how a question needs its path.
    pairs = list(islice(_records(folder / PAIRS), SAMPLED))
    pair = next((pair for pair in pairs if pair["metadata"].get("kind") == "bridge"), next(iter(pairs), None))
    if pair is None:
        return
    wanted = pair["trajectory_id"]
    path = next(
        (record for record in _records(folder / TRAJECTORIES) if record["trajectory_id"] == wanted), None
    )
    console.print("\nOne of the questions", style="bold")
    console.print(f"  Q: {pair['question']}")
    console.print(f"  A: {pair['answer']}")
    numbers = _print_path(console, path, pair["metadata"].get("path")) if path is not None else {}
    console.print("\nIts reasoning, with the evidence of each step", style="bold")
    for number, step in enumerate(pair["reasoning_steps"], 1):
        console.print(f"  {number}. {step['step']}")
        for citation in step["citations"]:
            node_number = numbers.get(citation["node_id"], "?")
            console.print(f"     [{node_number}] “{_short(citation['quote'])}”", style="dim")


def _print_path(console: "Console", path: Mapping[str, Any], needed: Sequence[str] | None) -> dict[str, str]:
    """Print the needed actions of a path and return the number of each node."""
    console.print(f"\nIts path, from the seed “{_short(path['seed_data'])}”", style="bold")
    numbers: dict[str, str] = {}
    nodes = [node for node in path["nodes"] if needed is None or node["node_id"] in needed]
    for number, node in enumerate(nodes):
        numbers[node["node_id"]] = str(number)
        if node["action"] is not None:
            arguments = json.dumps(node["action"]["args"], ensure_ascii=False)
            console.print(f"  [{number}] {node['action']['tool']} {_short(arguments)}  ({node['verdict']})")
    return numbers


def _records(file: Path) -> Iterator[dict[str, Any]]:
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_WIDTH else f"{line[: QUOTE_WIDTH - 1]}…"
