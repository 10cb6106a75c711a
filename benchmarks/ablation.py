"""Fine-tuning on pairs that passed the checks, compared with as many steps of pairs that nobody checked.

Run `python benchmarks/ablation.py [--check] [--short] [--seeds N]`: prints a table, and as the last line one JSON object. With
`--check` it exits with 1 if the checks decide wrongly or if the arm of checked pairs does not learn. A difference between the arms is no floor:
it is reported whichever way it turns out.

The world is that of the first training. Both arms have a pair from each of the same trees: the first draft of a
generator that errs at measured rates, and its first draft that the checks keep. A planner that follows the paths of the pairs
in the real team and tools gives the steps to learn. Both arms train the same initial model on the same number of steps with
the same settings. Each model then solves held-out tasks, greedily and at the sampling temperature of the first training.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import anyio
import torch
from transformers.utils import logging as transformers_logging

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentflow.trajectory import Task
from benchmarks._ablation_drafts import Gate, PathPair, write_arms
from benchmarks._local_planner import LocalPlanner, PathFollower
from examples.first_training.family import Family, make_family
from examples.first_training.plan import FineTuning, Shape, TrainingPlan
from examples.first_training.play import TaskOutcome, play
from examples.first_training.teacher import TeacherStep
from examples.first_training.tuning import fine_tuned_checkpoints
from examples.library.tiny import make_model

ARMS = {"base": "not fine-tuned", "ungated": "unchecked drafts", "gated": "checked drafts"}
KINDS = ("look_up", "chain")
"""Kinds of tasks: one search, and two of which the second depends on the first. No draft of a synthesis teaches the third."""
TURNS = 3
"""Turns of an episode."""
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}


class RunSize(NamedTuple):
    """Amount of work."""

    trees: int
    """Trees that are drafted from."""
    held_out: int
    """Held-out ships; each has a task of each kind."""
    epochs: int
    """Epochs of fine-tuning."""
    layers: int = 2
    """Layers of the model."""


FULL = RunSize(trees=140, held_out=50, epochs=40)
SHORT = RunSize(trees=8, held_out=2, epochs=1, layers=1)

FLOORS = {"gate_precision": 0.98, "gate_recall": 0.95}
"""Limits of `--check`."""
LEARNED = 0.1
"""Least share of right chains of the checked arm, on average, with `--check`; the short form does not learn."""


class SeedFigures(NamedTuple):
    """Figures of a seed."""

    gate: Gate
    """Decisions of the checks."""
    steps: int
    """Steps that each arm is trained on."""
    characters: dict[str, int]
    """Characters of the trained text by arm."""
    scores: dict[str, float]
    """Share of right answers by arm, decoding and kind of task; and planner steps of a chain by arm and decoding."""


async def demonstrations(pairs: Sequence[PathPair], corpus: Path) -> list[list[TeacherStep]]:
    """Return the steps of each pair, made in the real team with real searches."""
    follower = PathFollower({pair.question: pair.queries for pair in pairs})
    tasks = [Task(index=number, id=str(number), question=pair.question) for number, pair in enumerate(pairs)]
    await play(follower, tasks, corpus, max_turns=TURNS)
    return [follower.shown[pair.question] for pair in pairs]


async def judge(
    model: Path, tasks: Sequence[Task], corpus: Path, temperature: float, seed: int
) -> list[TaskOutcome]:
    """Return the outcomes of a model on tasks."""
    return await play(LocalPlanner(model, temperature=temperature, seed=seed), tasks, corpus, max_turns=TURNS)


async def one_seed(seed: int, size: RunSize, folder: Path) -> SeedFigures:
    """Make both arms, train both, and judge them and the initial model."""
    family = make_family(seed, train=2 * size.trees, choose=1, held_out=size.held_out)
    corpus = family.write(folder / "family")
    arms = await write_arms(family, corpus, seed)
    lessons: dict[str, list[TeacherStep]] = {}
    for name, pairs in (("ungated", arms.ungated), ("gated", arms.gated)):
        shown = await demonstrations(pairs, corpus)
        lessons[name] = [step for episode in shown for step in episode]
    steps = min(map(len, lessons.values()))
    lessons = {name: shown[:steps] for name, shown in lessons.items()}
    models = {"base": _base(folder / "model", family, lessons, size, seed)}
    plan = TrainingPlan(fine_tuning=FineTuning(epochs=size.epochs, kept=1, batch=8))
    for name, shown in lessons.items():
        # A step is an episode of its own, so that both arms make the same number of optimizer steps.
        (models[name],) = fine_tuned_checkpoints(
            models["base"], folder / name, family, [[step] for step in shown], plan, seed, lambda _: None
        )
    tasks = [task for task in family.tasks("held_out") if task.metadata["kind"] in KINDS]
    scores: dict[str, float] = {}
    for name in ARMS:
        for decoding, temperature in TEMPERATURES.items():
            outcomes = await judge(models[name], tasks, corpus, temperature, seed)
            for kind in KINDS:
                key = f"{name}_{decoding}_{kind}"
                scores[key] = fmean([one.right for one in outcomes if one.kind == kind])
            scores[f"{name}_{decoding}_steps"] = fmean([one.steps for one in outcomes if one.kind == "chain"])
    characters = {name: sum(len(step.answer) for step in shown) for name, shown in lessons.items()}
    return SeedFigures(arms.gate, steps, characters, scores)


def _base(
    folder: Path, family: Family, lessons: dict[str, list[TeacherStep]], size: RunSize, seed: int
) -> Path:
    """Return the initial model; its tokenizer knows the texts of both arms."""
    texts = [document.text for document in family.documents()]
    for shown in lessons.values():
        texts += [step.answer for step in shown]
        texts += [message["content"] for step in shown for message in step.messages]
    return make_model(folder, texts, Shape(layers=size.layers), seed)


def figures_of(seeds: Sequence[SeedFigures]) -> dict[str, float]:
    """Return the figures of all seeds: sums of the checks, and mean and range of each score."""
    kept = sum(one.gate.kept for one in seeds)
    good_kept = sum(one.gate.good_kept for one in seeds)
    figures = {
        "seeds": float(len(seeds)),
        "drafts": float(sum(one.gate.kept + one.gate.found.total() for one in seeds)),
        "gate_precision": good_kept / kept,
        "gate_recall": good_kept / sum(one.gate.good for one in seeds),
        "gate_calls": float(sum(one.gate.calls for one in seeds)),
        "steps": fmean([one.steps for one in seeds]),
        "more_characters_gated": fmean(
            [one.characters["gated"] / one.characters["ungated"] - 1 for one in seeds]
        ),
    }
    for name in seeds[0].scores:
        shares = [one.scores[name] for one in seeds]
        figures |= {name: fmean(shares), f"{name}_low": min(shares), f"{name}_high": max(shares)}
    return figures


def show(figures: dict[str, float]) -> None:
    """Print the table."""
    print(
        f"{figures['seeds']:.0f} seeds: {figures['drafts']:.0f} drafts, precision {figures['gate_precision']:.3f} and recall "
        f"{figures['gate_recall']:.3f} of the checks, {figures['steps']:.0f} steps to learn in each arm"
    )
    columns = [f"{kind} {decoding}" for decoding in TEMPERATURES for kind in (*KINDS, "steps")]
    print(f"{'right answers, mean (range)':<28}{''.join(f'{column:>22}' for column in columns)}")
    for arm, name in ARMS.items():
        cells: list[str] = []
        for decoding in TEMPERATURES:
            for kind in KINDS:
                key = f"{arm}_{decoding}_{kind}"
                low, high = figures[f"{key}_low"], figures[f"{key}_high"]
                cells.append(f"{100 * figures[key]:.1f}% ({100 * low:.0f} to {100 * high:.0f})")
            cells.append(f"{figures[f'{arm}_{decoding}_steps']:.2f}")
        print(f"{name:<28}{''.join(f'{cell:>22}' for cell in cells)}")


def missed(figures: dict[str, float], *, learns: bool) -> list[str]:
    """Return the floors that are missed."""
    floors = dict(FLOORS)
    if learns:
        floors["gated_greedy_chain"] = LEARNED
    return [
        f"{name}: {figures[name]:.3f}, at least {floor}"
        for name, floor in floors.items()
        if figures[name] < floor
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    parser.add_argument("--short", action="store_true", help="one seed and a model that does not learn")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    options = parser.parse_args(arguments)
    # Another number of threads rounds differently; one is quickest for a model this small.
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    size, count = (SHORT, 1) if options.short else (FULL, options.seeds)
    seeds: list[SeedFigures] = []
    for seed in range(count):
        with tempfile.TemporaryDirectory() as folder:
            seeds.append(anyio.run(one_seed, seed, size, Path(folder)))
        print(f"seed {seed}: {json.dumps(seeds[-1].scores)}", file=sys.stderr)
    figures = figures_of(seeds)
    show(figures)
    lines = missed(figures, learns=not options.short)
    for line in lines:
        print(f"missed: {line}")
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
