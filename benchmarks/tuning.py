"""Record of tunings, and a short run that is compared with it.

Run `python benchmarks/tuning.py [--check]`: makes the short run of one seed and prints its curve beside the recorded one; with
`--check` it exits with 1 if the curve leaves it. `--record FOLDER… --task NAME` appends finished runs, `--record-short` the
short run of five seeds, `--compare FOLDER` tunes countdown with each backbone, and `--page` writes docs/tuning-benchmarks.md and
docs/backbone-comparison.md. `--check` also warns of tasks whose newest record is worse than the one before.

The short run is a whole reinforcement loop without an engine: a tiny model with random weights answers prompts by one token,
which is right if it is of the kind that the prompt asks for. Answers are drawn from the model's own probabilities by a seeded
generator, their rewards compared in groups, and a step made by the local backbone. The curve is the exact probability of a
right answer, so it has no noise of measurement.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentflow.errors import AgentFlowError
from agentflow.learner import Sample
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.trace import Tokens

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._backbone_comparison import BACKBONES, MODELS, TASK, checked_out, comparison_page_of, measure
from benchmarks._tuning_record import (
    CurvePoint,
    TuningEntry,
    append,
    curve_of,
    drops_of,
    entry_of,
    page_of,
    read_entries,
)

__all__ = ["COMPARISON", "PAGE", "RECORD", "SHORT", "leaves", "main"]

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "tuning.jsonl"
PAGE = ROOT / "docs" / "tuning-benchmarks.md"
COMPARISON = ROOT / "docs" / "backbone-comparison.md"
SHORT = "short"
"""Task of the short run."""
SEEDS = tuple(range(5))
COMPARED = 4
"""Seed of the compared run: in the middle of the recorded ones."""
STEPS = 12
PROMPTS = 8
GROUP = 8
VOCABULARY = 64
KINDS = 4
TOLERANCE = 0.02
"""Machines round differently, and a draw between two answers may then fall to the other one."""
LOSS = LossSettings(kl_coef=0.0)


def short_curve(seed: int, folder: Path, steps: int = STEPS) -> list[tuple[float, float]]:
    """Train a tiny model; return the probability of a right answer before the first step and after each.

    :param folder: where the model is written.
    """
    from agentflow.learner.local import LocalBackbone, OptimizerSettings, PolicySettings

    _write_model(seed, folder)
    policy = PolicySettings(
        model=str(folder), dtype="float32", device="cpu", gradient_checkpointing=False, threads=1
    )
    backbone = LocalBackbone(policy, OptimizerSettings(learning_rate=3e-3))
    draw = Random(f"short/{seed}")
    prompts = [(KINDS + number, 2, number % KINDS) for number in range(PROMPTS)]
    every = rows_of(
        [
            _sample(0, place, prompt, token, 0.0, 0.0)
            for place, prompt in enumerate(prompts)
            for token in range(VOCABULARY)
        ],
        LOSS,
    )
    curve: list[tuple[float, float]] = []
    try:
        for step in range(steps + 1):
            chances = np.concatenate(backbone.log_probs(every)).reshape(PROMPTS, VOCABULARY)
            curve.append((step, _right(chances)))
            if step < steps:
                backbone.step(rows_of(_draws(draw, step, prompts, chances), LOSS), LOSS)
    finally:
        backbone.close()
    return curve


def _draws(
    draw: Random, step: int, prompts: Sequence[tuple[int, ...]], chances: NDArray[np.float32]
) -> list[Sample]:
    """Return a group of answers to each prompt, drawn from the model's probabilities."""
    samples: list[Sample] = []
    for place, prompt in enumerate(prompts):
        for token in draw.choices(range(VOCABULARY), np.exp(chances[place]).tolist(), k=GROUP):
            right = float(token % KINDS == place % KINDS)
            samples.append(_sample(step, place, prompt, token, right, float(chances[place][token])))
    return samples


def _sample(
    step: int, place: int, prompt: tuple[int, ...], token: int, reward: float, logprob: float
) -> Sample:
    call = Tokens(prompt=prompt, sampled=(token,), logprobs=(logprob,))
    return Sample(task=f"{place}@{step}", id=f"{place}@{step}/{token}", reward=reward, calls=(call,))


def _right(chances: NDArray[np.float32]) -> float:
    """Return the mean probability of a right answer."""
    kinds = np.arange(VOCABULARY) % KINDS
    right = kinds[None, :] == (np.arange(PROMPTS) % KINDS)[:, None]
    return float((np.exp(chances.astype(np.float64)) * right).sum() / PROMPTS)


def _write_model(seed: int, folder: Path) -> None:
    """Write a model of one layer with random weights, and a tokenizer of its vocabulary."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
    )
    random: Any = torch.random
    with random.fork_rng():
        random.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    words: Any = models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), eos_token="w1", pad_token="w0"
    )
    tokenizer.save_pretrained(folder)


def leaves(curve: Sequence[tuple[float, float]], recorded: Sequence[CurvePoint]) -> list[tuple[float, float]]:
    """Return the points of a curve that lie outside the recorded one."""
    known = {point.step: point for point in recorded}
    return [
        (step, value)
        for step, value in curve
        if int(step) not in known
        or not known[int(step)].low - TOLERANCE <= value <= known[int(step)].high + TOLERANCE
    ]


def measure_short(commit: str) -> TuningEntry:
    """Return a line with the short run of five seeds."""
    curves: list[list[tuple[float, float]]] = []
    seconds: list[float] = []
    for seed in SEEDS:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            curves.append(short_curve(seed, Path(folder)))
        seconds.append(round(time.perf_counter() - begin, 1))
    before, after = [tuple(round(curve[place][1], 4) for curve in curves) for place in (0, -1)]
    gains = [last - first for first, last in zip(before, after, strict=True)]
    return TuningEntry(
        task=SHORT,
        commit=commit,
        backbone="local",
        hardware=_hardware(),
        measure="probability of a right answer",
        seeds=SEEDS,
        before=before,
        after=after,
        gain=(round(sum(gains) / len(gains), 4), round(min(gains), 4), round(max(gains), 4)),
        curve=curve_of(curves),
        seconds=tuple(seconds),
    )


def _hardware() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _commit(name: str = "HEAD") -> str:
    """Return the full name of a commit, of the checked-out one unless it is given."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or name


def compare() -> bool:
    """Make the short run, print its curve beside the recorded one, and return whether it stays within it."""
    recorded = next((each.curve for each in reversed(read_entries(RECORD)) if each.task == SHORT), ())
    with tempfile.TemporaryDirectory() as folder:
        curve = short_curve(COMPARED, Path(folder))
    outside = leaves(curve, recorded)
    known = {point.step: point for point in recorded}
    for step, value in curve:
        point = known.get(int(step))
        beside = f"recorded {point.low:.3f} to {point.high:.3f}" if point else "not recorded"
        print(
            f"step {int(step):>3}   {value:.3f}   {beside}   {'MISSED' if (step, value) in outside else 'ok'}"
        )
    print(
        json.dumps(
            {"benchmark": "tuning", "met": not outside, "curve": [round(value, 4) for _, value in curve]}
        )
    )
    return not outside


def compare_backbones(
    folder: Path, commit: str, models: Sequence[str], backbones: Sequence[str], hardware: str
) -> None:
    """Tune countdown at a commit with each model and backbone, and append each to the record. It resumes in the same folder."""
    with checked_out(commit, folder / f"tree-{commit[:9]}") as tree:
        for model in models:
            for backbone in backbones:
                out = folder / commit[:9] / model
                append(RECORD, measure(tree, out, commit, model, backbone, hardware))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description="Record of tunings, and a short run that is compared with it."
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if the short run leaves the recorded curve"
    )
    parser.add_argument(
        "--record", nargs="+", type=Path, metavar="FOLDER", help="append finished runs, one for each seed"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FOLDER", help="tune countdown with each backbone at --commit"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="of --compare")
    parser.add_argument(
        "--backbones", nargs="+", choices=BACKBONES, default=["local", "verl", "debug"], help="of --compare"
    )
    parser.add_argument("--record-short", action="store_true", help="append the short run of five seeds")
    parser.add_argument("--page", action="store_true", help="write the pages")
    parser.add_argument("--task", default="", help="name of the task of --record")
    parser.add_argument("--model", choices=MODELS, default="tiny", help="model of --record")
    parser.add_argument("--backbone", default="local")
    parser.add_argument("--hardware", default=_hardware())
    parser.add_argument("--commit", type=_commit, default=_commit())
    parser.add_argument(
        "--before", default="fine_tuned", help="name of the policy before, in `success` of figures.json"
    )
    parser.add_argument("--after", default="flow", help="name of the policy after")
    given = parser.parse_args(arguments)
    if given.record and not given.task:
        parser.error("--record needs --task NAME")
    if not (given.record or given.record_short or given.compare or given.page):
        for drop in drops_of(read_entries(RECORD)):
            print(f"warning: a drop: {drop}", file=sys.stderr)
        return 1 if not compare() and given.check else 0
    if given.compare:
        compare_backbones(given.compare, given.commit, given.models, given.backbones, given.hardware)
    if given.record:
        names = {
            name: getattr(given, name)
            for name in ("task", "model", "commit", "backbone", "hardware", "before", "after")
        }
        append(RECORD, entry_of(given.record, **names))
    if given.record_short:
        append(RECORD, measure_short(given.commit))
    entries = read_entries(RECORD)
    PAGE.write_text(page_of(entries, [TASK]), encoding="utf-8")
    COMPARISON.write_text(comparison_page_of(entries), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentFlowError as error:
        sys.exit(f"tuning: {error}")
