"""`agentflow preview`: two seeds or tasks from beginning to end, shown and not kept."""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agentflow.cli._check import kind_of
from agentflow.cli._output import buffered_console
from agentflow.cli._program import watch_run
from agentflow.cli._rollout import assign_tasks, rollout_view
from agentflow.cli._synth import synth_view
from agentflow.errors import ConfigurationError
from agentflow.rollouts import RESULTS, RolloutRun, load_rollout_config
from agentflow.synthesis import PAIRS, TREES, Report, load_synthesis_config
from agentflow.synthesis.pipeline import SynthesisRun, seeds_for

_OBSERVATION_CHARS = 160


def run_preview(arguments: argparse.Namespace) -> int:
    """Run two seeds or tasks in a temporary directory, and print what came of them.

    :raises AgentFlowError: one line, if it fails.
    """
    kind = arguments.kind or kind_of(arguments.config, arguments.settings)
    if kind in ("train", "tune"):
        raise ConfigurationError(
            f"preview: a training has none; agentflow {kind} backbone=debug prints its episodes"
        )
    with tempfile.TemporaryDirectory(prefix="agentflow-") as folder:
        return (_preview_synthesis if kind == "synth" else _preview_rollout)(arguments, Path(folder))


def _preview_synthesis(arguments: argparse.Namespace, folder: Path) -> int:
    config = load_synthesis_config(arguments.config, arguments.settings)
    every = seeds_for(config)
    seeds = every[: arguments.number]
    config = config.model_copy(update={"journal": None, "control": False, "learner": None})
    run = SynthesisRun(config, folder)

    def fields() -> dict[str, object]:
        shown = {"notes": run.notes, "trees": _records(folder / TREES), "pairs": _records(folder / PAIRS)}
        return {**shown, "estimate": None if run.report is None else _estimate(run.report, len(every))}

    def show() -> None:
        pairs = _records(folder / PAIRS)
        with buffered_console() as console:
            for note in run.notes:
                console.print(note)
            for tree in _records(folder / TREES):
                console.print("")
                for line in _tree_lines(tree):
                    console.print(line, no_wrap=False)
                tree_pairs = [pair for pair in pairs if pair["source_id"] == tree["source_id"]]
                for pair in tree_pairs:
                    console.print(f"Q: {pair['question']}\nA: {pair['answer']}")
                if not tree_pairs:
                    console.print("no question was written")
            if run.report is not None and run.report.seeds:
                console.print(f"\n{_cost_line(run.report, len(every))}")

    view = synth_view(run)
    return watch_run(run, partial(run.run, seeds), view, as_json=arguments.json, fields=fields, show=show)


def _estimate(report: Report, seeds: int) -> dict[str, float]:
    """Return pairs, calls, tokens and cost of a run over all seeds, if they are like those of a report."""
    factor = seeds / report.seeds if report.seeds else 0.0
    used = report.usage.values()
    return {
        "seeds": seeds,
        "pairs": round(factor * (report.pairs or report.tasks)),
        "calls": round(factor * sum(usage.calls for usage in used)),
        "tokens": round(factor * sum(usage.prompt_tokens + usage.completion_tokens for usage in used)),
        "cost": round(factor * sum(report.cost.values()), 4),
    }


def _cost_line(report: Report, seeds: int) -> str:
    """Return one line about the cost of a pair, and that of the whole run."""
    whole = _estimate(report, seeds)
    per_pair = "no pair was kept"
    if report.pairs or report.tasks:
        per_pair = f"{report.calls_per_pair:g} calls and {report.tokens_per_pair:,.0f} tokens per kept pair"
        per_pair += f" ({report.check_calls_per_pair:g} and {report.check_tokens_per_pair:,.0f} of them to write and check it)"
    cost = f", cost {whole['cost']:,.2f}" if whole["cost"] else ""
    return f"{per_pair}; all {seeds} seeds: about {whole['pairs']:,} pairs, {whole['calls']:,} calls, {whole['tokens']:,} tokens{cost}"


def _preview_rollout(arguments: argparse.Namespace, folder: Path) -> int:
    config = load_rollout_config(arguments.config, arguments.settings)
    assignment = assign_tasks(config)
    assignment = replace(assignment, tasks=assignment.tasks[: arguments.number], samples=1)
    update = {"journal": None, "output_dir": str(folder), "samples": 1, "save_results": True}
    run = RolloutRun(config.model_copy(update={**update, "trajectory_only": False}))

    def fields() -> dict[str, object]:
        return {"notes": run.notes, "summary": run.summary, "results": _records(folder / RESULTS)}

    def show() -> None:
        with buffered_console() as console:
            for note in run.notes:
                console.print(note)
            for result in _records(folder / RESULTS):
                shown = {
                    name: result.get(name) for name in ("question", "answer", "reference", "score", "failure")
                }
                console.print("")
                for name, value in shown.items():
                    if value is not None:
                        console.print(f"{name:<10} {' '.join(str(value).split())}")

    work = partial(run.run, assignment)
    return watch_run(run, work, rollout_view(run), as_json=arguments.json, fields=fields, show=show)


def _records(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file; none if the run ended before it was written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _tree_lines(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the actions of a tree, indented by depth, each with the beginning of its observation."""
    for node in tree["nodes"]:
        action, text = node["action"], " ".join(str(node["observation"]).split())
        head = f"{action['tool']} {json.dumps(action['args'], ensure_ascii=False)}: " if action else ""
        yield f"{'  ' * node['depth']}{head}{text[:_OBSERVATION_CHARS]}{'…' if len(text) > _OBSERVATION_CHARS else ''}"
