"""Tree packing: a forward and backward step on packed trees, compared with the same step row by row.

The trees are those of the supervisor: branching calls, each a row, so rows share prefixes. The packed step alternates
with two others on the same rows: one row per call, and one per conversation (calls that continue each other merged, as most
trainers do). Both baselines use the quicker of two ways: each row alone, or four of similar length as a padded batch;
all compute logits for trained tokens only. The bound is the ratio of floating-point operations: layers, visible pairs of
attention, rows of logits.

On a CPU it measures CPU time of one core; on a GPU elapsed time, with a larger model.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part.

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentflow.learner.compute import log_probs, log_probs_by_row, prepare
from agentflow.learner.packing import Row, merge_rows, pack

GPU = torch.cuda.is_available()
HIDDEN, LAYERS, VOCABULARY = (2048, 8, 32768) if GPU else (512, 2, 2048)
HEADS, SHARED, SIZE = HIDDEN // 64, 2, 64
TIMES = 8 if GPU else 1
"""Answers are so much longer on a GPU."""


class TreeShape(NamedTuple):
    """A tree of calls."""

    branches: tuple[int, ...]
    """Children of every call, turn by turn."""
    answer: int
    """Tokens that a call samples."""
    between: int
    """Tokens of tools after it."""


SHAPES = {
    2: TreeShape((4,), 128, 0),
    5: TreeShape((2, 2, 2), 48, 16),
    10: TreeShape((2, 2, 2, 2), 24, 8),
    20: TreeShape((3, 3, 3), 16, 4),
}
"""By how many tokens stand in rows for each that is unique."""

FLOORS: dict[str, tuple[str, float]] = {
    **{f"share_of_bound_{ratio}": ("least", 0.8) for ratio in SHAPES},
    **{f"share_of_bound_merged_{ratio}": ("least", 0.8) for ratio in SHAPES if ratio > 2},
    **{f"forwarded_per_unique_{ratio}": ("most", 1.0) for ratio in SHAPES},
    "memory_share_of_rows": ("most", 1.0),
    "packed_tokens_per_second": ("least", 1e6),
}


def grow(ratio: int) -> list[Row]:
    """One row for each call of a tree, as long in all as the ratio says: the question's length makes it so."""
    chance = np.random.default_rng(ratio)
    branches, answer, between = SHAPES[ratio]
    answer, between = answer * TIMES, between * TIMES
    calls = np.cumprod(branches)
    in_rows = int(sum(count * (turn * (answer + between) + answer) for turn, count in enumerate(calls)))
    unique = int(sum(calls) * answer + sum(calls[:-1]) * between)
    question = round((ratio * unique - in_rows) / (int(sum(calls)) - ratio))
    rows: list[Row] = []
    contexts = [chance.integers(0, VOCABULARY, question)]
    for count in branches:
        longer: list[np.ndarray[Any, Any]] = []
        for context in contexts:
            for _ in range(count):
                ids = np.concatenate((context, chance.integers(0, VOCABULARY, answer)))
                rows.append(row(ids, len(context)))
                longer.append(np.concatenate((ids, chance.integers(0, VOCABULARY, between))))
        contexts = longer
    return rows


def row(ids: np.ndarray[Any, Any], read: int) -> Row:
    """A row whose last tokens were sampled."""
    trained = np.arange(len(ids)) >= read
    count = len(ids) - read
    nothing = np.zeros(count, np.float32)
    units = np.zeros(count, np.int32)
    return Row(
        ids=ids.astype(np.int32),
        trained=trained,
        behaviour=nothing,
        advantages=nothing,
        weights=np.ones(count),
        units=units,
    )


def make_model() -> nn.Module:
    """The model whose step is measured."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // SHARED,
        head_dim=SIZE,
        max_position_embeddings=2**16,
    )
    model: Any = Qwen3ForCausalLM(config)
    if GPU:
        model = model.to("cuda", torch.bfloat16)
    prepare(model)
    return model


def operations(model: nn.Module, tokens: int, pairs: int, lines: int) -> float:
    """Floating-point operations of a step: two for each product of a forward, and twice as many to go back."""
    weights = sum(part.numel() for part in cast("Any", model).model.layers.parameters() if part.ndim > 1)
    attention = 2 * LAYERS * HEADS * SIZE * pairs
    return 6.0 * (weights * tokens + attention + HIDDEN * VOCABULARY * lines)


def operations_of_rows(model: nn.Module, rows: Sequence[Row]) -> float:
    """Those of rows that share nothing."""
    lengths = [len(one.ids) for one in rows]
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return operations(model, sum(lengths), pairs, sum(int(one.trained.sum()) for one in rows))


def clock() -> float:
    """Seconds of this process on a core; on a GPU, elapsed ones once it is done."""
    if not GPU:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(model: nn.Module, losses: Callable[[], Sequence[Callable[[], torch.Tensor]]]) -> float:
    """Seconds for a step, the making of its batches included."""
    model.zero_grad()
    begun = clock()
    for loss in losses():
        loss().sum().backward()
    return clock() - begun


def as_tree(model: nn.Module, rows: Sequence[Row]) -> float:
    """Seconds for the step along trees."""
    return seconds(model, lambda: [lambda one=one: log_probs(model, one) for one in pack(rows)])


def by_row(model: nn.Module, rows: Sequence[Row], rounds: int) -> float:
    """Seconds for the step row by row, in the quicker way."""
    ordered = sorted(rows, key=lambda one: len(one.ids))

    def batches(size: int) -> list[Callable[[], torch.Tensor]]:
        cuts = [*range(0, len(ordered), size), len(ordered)]
        return [lambda a=a, b=b: log_probs_by_row(model, ordered[a:b]) for a, b in pairwise(cuts)]

    return min(seconds(model, lambda size=size: batches(size)) for _ in range(rounds) for size in (1, 4))


def unique_tokens(rows: Sequence[Row]) -> int:
    """Count the tokens of a tree of these rows, the slow way."""
    numbers: dict[tuple[int, int], int] = {}
    for one in rows:
        place = -1
        for token in one.ids.tolist():
            place = numbers.setdefault((place, token), len(numbers))
    return len(numbers)


def steps(figures: dict[str, float]) -> None:
    """Steps at all ratios."""
    model = make_model()
    for ratio in SHAPES:
        rows = grow(ratio)
        merged = merge_rows(rows)
        [packed] = pack(rows)
        ours = operations(model, len(packed), int((packed.positions + 1).sum()), len(packed.predicting))
        # The first step is for compilers and caches.
        as_tree(model, rows)
        rounds = 3 if GPU else 1 + (ratio < 10)
        tree = as_tree(model, rows)
        alone = by_row(model, rows, rounds)
        tree = min(tree, as_tree(model, rows))
        chains = by_row(model, merged, rounds)
        tree = min(tree, as_tree(model, rows))
        flat = sum(len(one.ids) for one in rows)
        bound, merged_bound = (operations_of_rows(model, some) / ours for some in (rows, merged))
        figures |= {
            f"ratio_{ratio}": flat / len(packed),
            f"forwarded_per_unique_{ratio}": len(packed) / unique_tokens(rows),
            f"bound_{ratio}": bound,
            f"speedup_{ratio}": alone / tree,
            f"share_of_bound_{ratio}": alone / tree / bound,
            f"bound_merged_{ratio}": merged_bound,
            f"speedup_merged_{ratio}": chains / tree,
            f"share_of_bound_merged_{ratio}": chains / tree / merged_bound,
        }


def memory_job(figures: dict[str, float]) -> None:
    """Peak memory of a step along a tree, and of one with all rows in a batch, each in a process of its own."""
    peaks: dict[str, float] = {}
    for kind in ("tree", "rows"):
        argv = [sys.executable, __file__, "--memory", kind]
        peaks[kind] = float(
            subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[-1]
        )
    figures["memory_tree_mb"], figures["memory_rows_mb"] = peaks["tree"], peaks["rows"]
    figures["memory_share_of_rows"] = peaks["tree"] / peaks["rows"]


def memory(kind: str) -> float:
    """The part of `memory_job` that runs in another process: megabytes at most, beyond those of a small step."""
    model, rows = make_model(), grow(5)

    def peak() -> float:
        if GPU:
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    log_probs_by_row(model, [row(np.arange(8), 4)]).sum().backward()
    before = peak()
    found = log_probs(model, pack(rows)[0]) if kind == "tree" else log_probs_by_row(model, rows)
    found.sum().backward()
    return peak() - before


def packing_job(figures: dict[str, float]) -> None:
    """Return the number of unique tokens packed per second on one core."""
    chance = np.random.default_rng(0)
    rows: list[Row] = []
    for _ in range(64):
        question = chance.integers(0, VOCABULARY, 1024)
        rows += [row(np.concatenate((question, chance.integers(0, VOCABULARY, 256))), 1024) for _ in range(8)]
    found: list[float] = []
    for _ in range(5):
        begun = time.process_time()
        pack(rows, 32768)
        found.append(time.process_time() - begun)
    figures["packed_tokens_per_second"] = unique_tokens(rows) / min(found)
    figures["row_tokens_per_second"] = sum(len(one.ids) for one in rows) / min(found)


def show(figures: dict[str, float]) -> None:
    """The table."""
    where = torch.cuda.get_device_name() if GPU else "one core"
    print(
        f"A step of {LAYERS} layers of {HIDDEN} on {where}: how many times quicker along trees, and of what bound"
    )
    print(f"{'row tokens per unique':>22}{'a row for each call':>28}{'calls merged to chains':>28}")
    for ratio in SHAPES:
        parts = [
            f"{figures[f'speedup{kind}_{ratio}']:8.2f} x {figures[f'share_of_bound{kind}_{ratio}']:5.0%} "
            f"of {figures[f'bound{kind}_{ratio}']:5.2f}"
            for kind in ("", "_merged")
        ]
        print(f"{figures[f'ratio_{ratio}']:22.1f}" + "".join(f"{part:>28}" for part in parts))
    print(
        f"memory: {figures['memory_tree_mb']:.0f} MB, all rows in one batch {figures['memory_rows_mb']:.0f} MB: "
        f"{figures['memory_share_of_rows']:.0%}"
    )
    print(
        f"packing: {figures['packed_tokens_per_second'] / 1e6:.1f} M different tokens/s, "
        f"{figures['row_tokens_per_second'] / 1e6:.1f} M tokens of rows/s"
    )


def missed(figures: dict[str, float]) -> list[str]:
    """The floors that are missed."""
    return [
        f"{name}: {figures[name]:.2f}, at {kind} {floor}"
        for name, (kind, floor) in FLOORS.items()
        if (figures[name] > floor if kind == "most" else figures[name] < floor)
    ]


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--memory", choices=("tree", "rows"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(memory(options.memory))
        return 0
    figures: dict[str, float] = {}
    packing_job(figures)
    memory_job(figures)
    steps(figures)
    show(figures)
    lines = missed(figures)
    for line in lines:
        print(f"missed: {line}")
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
