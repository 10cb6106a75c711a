"""Answers that share their beginnings, compared with as many independent ones, by a planner that was trained.

Run `make first-training`, then `python benchmarks/branching.py [--check]`: prints the figures of each side as they are measured, and as the last line one JSON object. With `--check` it exits with 1 if a limit is missed.

The planner of the first training answers its held-out tasks with the real team and tools: in independent episodes, in branching
ones, and in a search that continues the paths of the best values, which a guide has learned from branching episodes on training
tasks. Intervals are those of a bootstrap over tasks; differences are paired.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct, structs

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentflow.rollouts import RolloutRun, RolloutSummary, TaskResult, assign, load_rollout_config
from agentflow.scoring import confidence_interval, majority
from agentflow.serving import ModelServer, ServingSettings
from benchmarks._learned_guide import guide, learn
from examples.first_training.teacher import CODE, SEARCH
from examples.first_training.training import LONGEST

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
SHARE = 0.6
"""Largest share of sampled tokens and tool calls of independent episodes."""
GUIDE = "benchmarks._learned_guide:guide"
_COMPARED = [("accuracy", "accuracy"), ("any_right", "any_right"), ("voted", "voted"), ("chosen", "voted")]
"""Figures that are compared with those of independent episodes."""


class Answers(Struct, frozen=True):
    """Answers to one task."""

    accuracy: float
    """Share of right ones."""
    any_right: float
    """1 if one is right."""
    voted: float
    """1 if the most frequent one is right."""
    chosen: float
    """1 if the one with the best value is right; without values, the same as `voted`."""


class Side(Struct, frozen=True):
    """Answers of one way of working."""

    by_task: dict[str, Answers]
    """Answers by task."""
    tokens: int
    """Tokens that the planner sampled."""
    tool_calls: int
    """Tool calls."""
    answers: float
    """Answers per task."""


def answers_of(results: Sequence[TaskResult]) -> Answers:
    """Return the figures of the answers to a task."""
    drawn = [result for result in results if not result.is_pruned for _ in range(result.drawn)]
    right = [float(result.score >= 1) for result in drawn]
    index = majority([result.answer or None for result in drawn])
    voted = 0.0 if index is None else right[index]
    valued = [result for result in results if isinstance(result.value, float) and not result.is_pruned]
    best = max(valued, key=lambda result: (result.value, -result.sample), default=None)
    return Answers(
        accuracy=fmean(right) if right else 0.0,
        any_right=max(right, default=0.0),
        voted=voted,
        chosen=voted if best is None else float(best.score >= 1),
    )


class Bench:
    """Rollouts of a planner on parts of the tasks of a first training."""

    def __init__(self, start: Path, server: ModelServer, folder: Path) -> None:
        """:param folder: for the output of rollouts."""
        self._start = start
        self._folder = folder
        planner = {
            "model_name": server.model,
            "base_url": server.url,
            "api_key": server.key,
            "temperature": 1.0,
            "max_tokens": LONGEST,
            "structured": "known",
            "max_attempts": 1,
        }
        self._settings: dict[str, Any] = {
            "model_name": "offline",
            "analyst_model": {"model_name": "offline"},
            "planner_model": planner,
            "available_tools": [SEARCH, CODE],
            "resource_types": ["rag", "code"],
            "resource_init_configs": {
                "rag": {"index_path": str(start / "family" / "documents.jsonl"), "top_k": 1}
            },
            "short_prompts": True,
            "max_turns": 3,
            "max_retries": 0,
            "max_workers": 48,
            "evaluation_metric": "exact_match",
        }

    async def side(
        self, name: str, part: str, tasks: int, **settings: object
    ) -> tuple[Side, list[TaskResult]]:
        """Run tasks of a part; return the figures and the results."""
        results: list[TaskResult] = []
        values = {
            **self._settings,
            **settings,
            "data_path": str(self._start / "family" / f"{part}.jsonl"),
            "number_of_tasks": tasks,
            "output_dir": str(self._folder / name),
        }
        config = load_rollout_config(None, (), values)
        summary = await RolloutRun(config, in_order=results.append).run(assign(config, None))
        answers = _by_task(results)
        count = sum(result.drawn for result in results if not result.is_pruned) / len(answers)
        tokens = summary.usage["planner"].completion_tokens
        return Side(answers, tokens, _tool_calls(summary), count), results


def _by_task(results: Sequence[TaskResult]) -> dict[str, Answers]:
    by_task: defaultdict[str, list[TaskResult]] = defaultdict(list)
    for result in results:
        by_task[result.task.id].append(result)
    return {id: answers_of(own_results) for id, own_results in by_task.items()}


def _tool_calls(summary: RolloutSummary) -> int:
    return summary.tool_calls if not summary.branching else summary.branching.used.tool_calls


def difference(new: Mapping[str, Answers], old: Mapping[str, Answers], names: tuple[str, str]) -> list[float]:
    """Return the mean difference of two figures, and its interval.

    :param names: figure of each side.
    """
    changes = [getattr(answers, names[0]) - getattr(old[id], names[1]) for id, answers in new.items()]
    interval = confidence_interval(changes)
    return [round(value, 4) for value in (fmean(changes), interval.low, interval.high)]


async def measure(
    start: Path, planner: Path, tasks: int, learned: int, samples: int, widths: Sequence[int]
) -> dict[str, Any]:
    """Return the figures of all sides."""
    serving = ServingSettings(
        model=str(planner),
        name="planner",
        python=ROOT / ".venv-vllm" / "bin" / "python",
        device="cpu",
        dtype="float32",
        max_model_len=1024,
    )
    with tempfile.TemporaryDirectory() as folder:
        async with ModelServer(serving) as server:
            bench = Bench(start, server, Path(folder))
            figures: dict[str, Any] = {"tasks": tasks, "samples": samples}

            def show(name: str, side: Side, beside: Side | None = None) -> None:
                figures[name] = _row(side, beside)
                print(f"{name}: {figures[name]}", flush=True)

            alone, independent = await bench.side("independent", "held_out", tasks, samples=samples)
            show("independent", alone)
            for width in widths:
                shared = {"width": width, "leaves": samples}
                side, _ = await bench.side(f"branching-{width}", "held_out", tasks, branching=shared)
                show(f"branching, width {width}", side, alone)
            _, results = await bench.side(
                "learned", "train", learned, branching={"width": 4, "leaves": 2 * samples}
            )
            learn(results)
            # What the guide is worth without a search.
            guided = [
                structs.replace(result, value=await guide(result.task, result.turns, result.answer))
                for result in independent
            ]
            show(
                "independent, the best by the guide", structs.replace(alone, by_task=_by_task(guided)), alone
            )
            for width, leaves in ((2, 4), (4, 6), (4, 8)):
                search = {"search": "best_first", "width": width, "leaves": leaves, "guide": GUIDE}
                side, _ = await bench.side(f"best-{width}-{leaves}", "held_out", tasks, branching=search)
                show(f"best first, width {width}, {leaves} leaves", side, alone)
    return figures


def _row(side: Side, alone: Side | None = None) -> dict[str, Any]:
    answers = list(side.by_task.values())
    row: dict[str, Any] = {
        name: round(fmean(getattr(answer, name) for answer in answers), 4)
        for name in Answers.__struct_fields__
    }
    row |= {"answers": side.answers, "tokens": side.tokens, "tool_calls": side.tool_calls}
    if alone is not None:
        row["tokens_share"] = round(side.tokens / alone.tokens, 4)
        row["tool_calls_share"] = round(side.tool_calls / alone.tool_calls, 4)
        for new, old in _COMPARED:
            row[f"{new} - {old}"] = difference(side.by_task, alone.by_task, (new, old))
    return row


def main() -> int:
    """Measure, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--start", type=Path, default=Path("first_training_results/0"), help="folder of a first training"
    )
    parser.add_argument("--planner", type=Path, help="folder of the planner (default: the trained one)")
    parser.add_argument("--tasks", type=int, default=200, help="number of held-out tasks")
    parser.add_argument("--learned", type=int, default=200, help="number of training tasks for the guide")
    parser.add_argument("--samples", type=int, default=8, help="answers to a task")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4], help="continuations of a decision")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    arguments = parser.parse_args()
    planner = arguments.planner or arguments.start / "flow" / "policy"
    if not planner.is_dir():
        print(f"{planner} is missing; run make first-training first", file=sys.stderr)
        return 1
    figures = asyncio.run(
        measure(
            arguments.start,
            planner,
            arguments.tasks,
            arguments.learned,
            arguments.samples,
            arguments.widths,
        )
    )
    shared = figures[f"branching, width {arguments.widths[0]}"]
    met = max(shared["tokens_share"], shared["tool_calls_share"]) <= SHARE
    print(json.dumps({"benchmark": "branching", "met": met, **figures}))
    return int(arguments.check and not met)


if __name__ == "__main__":
    sys.exit(main())
