"""verl's own functions, fed the same rows, give our losses, gradients and advantages.

They run in verl's environment, once for all cases.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agentflow.learner import Sample
from agentflow.learner.losses import LossSettings, advantages_of, loss_of, rows_of
from agentflow.learner.packing import Row, longest_trained
from agentflow.trace import Tokens
from tests._verl import verl_python

ORACLE = Path(__file__).with_name("_verl_oracle.py")
MODES = {
    "flow_grpo": "vanilla",
    "grpo": "vanilla",
    "dapo": "vanilla",
    "dr_grpo": "vanilla",
    "gspo": "gspo",
    "cispo": "cispo",
    "reinforce": "reinforce",
}
"""Losses, and verl's names of their token losses."""
VERL_AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)
"""Aggregations that verl has, too: a row of verl is a sequence."""
SEEDS = range(6)

pytestmark = pytest.mark.timeout(900)


@dataclass
class Case:
    """A case for verl, and our results."""

    asked: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    ours: dict[str, NDArray[Any]]
    name: str = field(default="")


def random_samples(random: np.random.Generator, *, turns: int | None = None) -> list[Sample]:
    """Return episodes of a few tasks: several turns, any rewards, some with a multiplicity."""
    return [
        Sample(
            task=f"task-{task}",
            id=f"{task}-{episode}",
            reward=float(random.choice([random.normal(), round(random.uniform()), 0.5])),
            calls=tuple(_call(random) for _ in range(turns or int(random.integers(1, 4)))),
            multiplicity=int(random.choice([1, 1, 1, 2, 3])),
        )
        for task in range(int(random.integers(1, 4)))
        for episode in range(int(random.integers(2, 6)))
    ]


def _call(random: np.random.Generator) -> Tokens:
    number = int(random.integers(1, 9))
    return Tokens(
        prompt=tuple(random.integers(2, 60, int(random.integers(1, 6))).tolist()),
        sampled=tuple(random.integers(2, 60, number).tolist()),
        logprobs=tuple(random.uniform(-4.0, -0.1, number).tolist()),
    )


def repeated(rows: Sequence[Row], samples: Sequence[Sample]) -> list[int]:
    """Return rows for verl, which has no multiplicity: repeated as often as their episode was sampled."""
    calls = [sample.multiplicity for sample in samples for _ in sample.calls]
    return [place for place, times in enumerate(calls) for _ in range(times)]


def padded(arrays: Sequence[NDArray[Any]], width: int) -> NDArray[np.float64]:
    """Pad arrays to one width with zeros."""
    return np.array([np.pad(array.astype(np.float64), (0, width - len(array))) for array in arrays])


def loss_case(name: str, seed: int, said: dict[str, Any], *, native: bool, fixed: bool) -> Case:
    """A step by one of our losses.

    :param native: whether verl aggregates by itself; else it takes our weights, as weights of its own, and sums.
    :param fixed: whether the weights before the step have probabilities of their own.
    """
    random = np.random.default_rng(seed)
    settings = LossSettings.model_validate({"name": name, "length_scale": 16, "filter_groups": False, **said})
    samples = random_samples(random)
    rows = rows_of(samples, settings)
    width = longest_trained(rows)
    noisy = [row.behaviour + random.normal(0, 0.4, len(row.behaviour)) for row in rows]
    rows = [
        _with(row, noisy[place].astype(np.float32) if fixed else None, random)
        for place, row in enumerate(rows)
    ]
    today = padded([noise + random.normal(0, 0.4, len(noise)) for noise in noisy], width)
    log_prob = torch.from_numpy(today).requires_grad_()
    loss, _ = loss_of(log_prob, rows, settings)
    loss.backward()
    assert log_prob.grad is not None

    copies = repeated(rows, samples) if native else list(range(len(rows)))
    arrays = {
        "log_prob": today,
        "old": padded([row.behaviour if row.proximal is None else row.proximal for row in rows], width),
        "behaviour": padded([row.behaviour for row in rows], width),
        "reference": padded([row.reference for row in rows if row.reference is not None], width),
        "advantages": padded([row.advantages for row in rows], width),
        "mask": padded([np.ones(len(row.units)) for row in rows], width),
    }
    if not native:
        arrays["weights"] = padded([row.weights for row in rows], width)
    asked = {
        "what": "loss",
        "mode": MODES[name],
        "loss_agg_mode": settings.loss_agg_mode if native else "token-sum",
        "clip_ratio_low": settings.clip_ratio_low,
        "clip_ratio_high": settings.clip_ratio_high,
        "clip_ratio_c": settings.clip_ratio_c,
        "length_scale": settings.length_scale,
        "kl_coef": settings.kl_coef if native else 0.0,
        "kl_estimator": settings.kl_estimator,
        "correction": _threshold(settings, name, fixed=fixed),
        "correction_level": settings.correction_level,
        "fixed": fixed,
    }
    ours = {"loss": loss.detach().numpy(), "gradient": log_prob.grad.numpy()}
    if native:
        # Each copy has its share of the gradient.
        times = np.bincount(copies)[copies][:, None]
        ours["gradient"] = ours["gradient"][copies] / times
    return Case(asked, {key: value[copies] for key, value in arrays.items()}, ours, f"{name} {said} {seed}")


def _with(row: Row, proximal: NDArray[np.float32] | None, random: np.random.Generator) -> Row:
    reference = (row.behaviour + random.normal(0, 0.4, len(row.behaviour))).astype(np.float32)
    return Row(
        ids=row.ids,
        trained=row.trained,
        behaviour=row.behaviour,
        advantages=row.advantages,
        weights=row.weights,
        units=row.units,
        reference=reference,
        proximal=proximal,
    )


def _threshold(settings: LossSettings, name: str, *, fixed: bool) -> float | str | None:
    if settings.correction == "none" or (name != "reinforce" and not fixed):
        return None
    limit = settings.correction_limit
    return limit if settings.correction == "truncate" else f"1e-30_{limit}"


def advantage_case(estimator: str, seed: int, *, divide_by_std: bool) -> Case:
    """Return the case of advantages of episodes with several rows; verl gets a copy of each per multiplicity."""
    random = np.random.default_rng(seed)
    samples = random_samples(random, turns=None if estimator == "grpo" else 1)
    baseline = "group" if estimator == "grpo" else "leave_one_out"
    settings = LossSettings.model_validate({"baseline": baseline, "divide_by_std": divide_by_std})
    keys, tasks, rewards, ours = list[str](), list[str](), list[float](), list[float]()
    for number, (sample, advantage) in enumerate(
        zip(samples, advantages_of(samples, settings).tolist(), strict=True)
    ):
        for copy in range(sample.multiplicity):
            for turn in range(len(sample.calls)):
                keys.append(f"{sample.task}_{number}x{copy}_{turn}")
                tasks.append(sample.task)
                rewards.append(sample.reward)
                ours.append(advantage)
    mask = (np.arange(4)[None, :] < random.integers(1, 5, len(keys))[:, None]).astype(np.float64)
    level = np.zeros_like(mask)
    level[:, 0] = rewards
    asked = {
        "what": "advantages",
        "estimator": estimator,
        "divide_by_std": divide_by_std,
        "keys": keys,
        "tasks": tasks,
    }
    expected = np.array(ours)[:, None] * mask
    return Case(
        asked,
        {"rewards": level, "mask": mask},
        {"advantages": expected},
        f"{estimator} {divide_by_std} {seed}",
    )


def all_cases() -> Iterator[Case]:
    """Return every loss by every aggregation of verl and by our weights, every correction, and all advantages."""
    for seed in SEEDS:
        for name in MODES:
            for aggregation in VERL_AGGREGATIONS:
                said = {
                    "loss_agg_mode": aggregation,
                    "sequence": "call",
                    "correction": "none",
                    "kl_coef": 0.05,
                }
                estimator = ("k1", "k2", "k3")[seed % 3]
                yield loss_case(
                    name, seed, {**said, "kl_estimator": estimator}, native=True, fixed=seed % 2 == 0
                )
            for sequence in ("call", "episode"):
                said = {"sequence": sequence, "correction": "none", "kl_coef": 0.0}
                yield loss_case(name, seed, said, native=False, fixed=seed % 2 == 0)
        for name in ("flow_grpo", "cispo", "reinforce"):
            for correction in ("truncate", "mask"):
                for level in ("token", "sequence"):
                    said = {
                        "correction": correction,
                        "correction_level": level,
                        "correction_limit": 1.5,
                        "kl_coef": 0.0,
                    }
                    yield loss_case(name, seed, said, native=False, fixed=name != "reinforce")
        bounded = {"clip_ratio_c": 1.3, "kl_coef": 0.0, "correction": "none"}
        yield loss_case("flow_grpo", seed, bounded, native=False, fixed=True)
        yield advantage_case("grpo", seed, divide_by_std=True)
        yield advantage_case("grpo", seed, divide_by_std=False)
        yield advantage_case("rloo", seed, divide_by_std=False)


def group_of_one() -> Case:
    """Return the case of a single episode."""
    sample = Sample(task="t", id="e", reward=0.75, calls=(_call(np.random.default_rng(0)),))
    ours = advantages_of([sample], LossSettings())
    asked = {
        "what": "advantages",
        "estimator": "grpo",
        "divide_by_std": True,
        "keys": ["t_0_0"],
        "tasks": ["t"],
    }
    return Case(
        asked, {"rewards": np.array([[0.75]]), "mask": np.ones((1, 1))}, {"advantages": ours[:, None]}
    )


def rows_of_turns() -> Case:
    """Return the case of two episodes, one of three turns, for an estimator that counts rows."""
    settings = LossSettings.model_validate({"baseline": "leave_one_out", "divide_by_std": False})
    calls = tuple(_call(np.random.default_rng(seed)) for seed in range(3))
    long, short = (
        Sample(task="t", id="long", reward=1.0, calls=calls),
        Sample(task="t", id="short", reward=0.0, calls=calls[:1]),
    )
    ours = advantages_of([long, short], settings)[[0, 0, 0, 1], None]
    asked = {
        "what": "advantages",
        "estimator": "rloo",
        "divide_by_std": False,
        "keys": ["t_0_0", "t_0_1", "t_0_2", "t_1_0"],
        "tasks": ["t"] * 4,
    }
    rewards = np.array([[1.0], [1.0], [1.0], [0.0]])
    return Case(asked, {"rewards": rewards, "mask": np.ones((4, 1))}, {"advantages": ours})


@dataclass
class Asked:
    """All cases, and verl's results."""

    cases: list[Case]
    verl: list[dict[str, NDArray[Any]]]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Run all cases at once: loading verl takes longer than all of them."""
    cases = [*all_cases(), group_of_one(), rows_of_turns()]
    folder = tmp_path_factory.mktemp("verl")
    (folder / "cases.json").write_text(json.dumps([case.asked for case in cases]))
    arrays = {
        f"{number}/{name}": one for number, case in enumerate(cases) for name, one in case.arrays.items()
    }
    np.savez(folder / "arrays.npz", allow_pickle=False, **arrays)
    done = subprocess.run(
        [str(verl_python()), str(ORACLE), str(folder), str(folder / "answers.npz")],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "answers.npz") as answers:
        found = [
            {name: answers[f"{number}/{name}"] for name in case.ours} for number, case in enumerate(cases)
        ]
    return Asked(cases, found)


def apart(ours: NDArray[Any], verls: NDArray[Any]) -> float:
    """Return the largest difference, relative to the larger array."""
    largest = max(float(np.abs(ours).max()), float(np.abs(verls).max()), 1e-3)
    return float(np.abs(ours - verls).max()) / largest


@pytest.mark.parametrize("what", ["loss", "gradient", "advantages"])
def test_verl_gives_the_same_numbers(asked: Asked, what: str) -> None:
    differences = {
        case.name: apart(case.ours[what], verls[what])
        for case, verls in zip(asked.cases, asked.verl, strict=True)
        if what in case.ours and case.name
    }
    assert len(differences) >= (18 if what == "advantages" else 300)
    worst = max(differences, key=lambda name: differences[name])
    assert differences[worst] <= 1e-6, worst


def test_a_group_of_one_has_no_advantage_here_and_its_reward_in_verl(asked: Asked) -> None:
    ours, verls = asked.cases[-2].ours["advantages"], asked.verl[-2]["advantages"]
    assert ours.item() == 0.0
    assert verls.item() == pytest.approx(0.75, abs=1e-5)


def test_an_episode_counts_once_here_and_per_row_in_verl(asked: Asked) -> None:
    ours, verls = asked.cases[-1].ours["advantages"], asked.verl[-1]["advantages"]
    assert ours.flatten().tolist() == [1.0, 1.0, 1.0, -1.0]
    assert verls.flatten() == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
