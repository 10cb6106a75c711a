"""Samples of trees: every leaf is an episode, weighted by its multiplicity."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from collections import Counter
from random import Random

import pytest
import torch
from msgspec import structs
from torch import Tensor

from agentflow.learner import Sample
from agentflow.learner._groups import sample_of
from agentflow.learner.compute import log_probs, log_probs_by_row, prepare
from agentflow.learner.losses import LossSettings, loss_of, rows_of
from agentflow.learner.packing import pack
from agentflow.trace import BranchPoint, Ending, Episode, Exchange, Task, Tokens, Usage
from tests.agentflow.learner._models import VOCABULARY, tiny_model

TASK = Task(index=0, id="t", question="What stands in the book?")
LOSSES = ["flow_grpo", "grpo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce"]


def grown(seed: int) -> list[Sample]:
    """The leaves of a tree of three decisions, drawn from few words, so that some are drawn twice."""
    draw = Random(seed)
    samples: list[Sample] = []

    def grow(path: tuple[int, ...], exchanges: tuple[Exchange, ...], points: tuple[BranchPoint, ...]) -> None:
        if len(path) == 3:
            episode = Episode(
                task=TASK, agent="single", ending=Ending.ANSWERED, exchanges=exchanges, branches=points
            )
            member = len(samples)
            samples.append(
                sample_of(
                    episode,
                    group="g",
                    member=member,
                    reward=draw.random(),
                    trained=["agent"],
                    temperature=1.0,
                    version=2,
                )
            )
            return
        share = points[-1].share if points else 8
        for position, drawn in sorted(Counter(draw.randrange(3) for _ in range(2)).items()):
            sampled = tuple(draw.randrange(2, VOCABULARY) for _ in range(draw.randint(1, 6)))
            tokens = Tokens(
                prompt=(2, *(token for exchange in exchanges for token in sampled_by(exchange))),
                sampled=sampled,
                logprobs=tuple(-4.0 + draw.random() for _ in sampled),
                version="3",
            )
            call = Exchange(key=f"{len(path) + 1}/agent", role="agent", usage=Usage(), tokens=tokens)
            point = BranchPoint(position, len(path), len(path), share=drawn * share // 2, drawn=drawn)
            grow((*path, position), (*exchanges, call), (*points, point))

    grow((), (), ())
    return samples


def sampled_by(exchange: Exchange) -> tuple[int, ...]:
    assert exchange.tokens is not None
    return exchange.tokens.sampled


@pytest.mark.promise("learner:trees")
def test_each_leaf_is_an_episode_with_the_calls_on_its_path() -> None:
    samples = grown(1)
    assert [sample.id for sample in samples] == [f"g/{number}" for number in range(len(samples))]
    for sample in samples:
        assert len(sample.calls) == 3 and sample.details["version"] == 3
        assert sample.nodes
        assert [len(node.split("-")) for node in sample.nodes] == [2, 3, 4]
    # Nothing that was drawn is lost: what is merged counts as often.
    assert sum(sample.multiplicity for sample in samples) == 8
    assert len(samples) < 8
    shared = {
        node: call for sample in samples for node, call in zip(sample.nodes or (), sample.calls, strict=True)
    }
    assert all(
        shared[node] == call
        for sample in samples
        for node, call in zip(sample.nodes or (), sample.calls, strict=True)
    )


@pytest.mark.promise("learner:multiplicity")
@pytest.mark.parametrize("name", LOSSES)
def test_merged_duplicates_have_the_gradient_of_independent_rows(name: str) -> None:
    for seed in (1, 2, 3):
        merged = grown(seed)
        apart = [
            structs.replace(sample, id=f"{sample.id}#{number}", multiplicity=1)
            for sample in merged
            for number in range(sample.multiplicity)
        ]
        assert len(apart) > len(merged)
        settings = LossSettings.model_validate({"name": name, "kl_coef": 0.0, "length_scale": 32})
        loss, gradient = by_tree(merged, settings)
        expected, reference = by_row(apart, settings)
        assert float(loss) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)
        assert length(gradient - reference) <= 1e-5 * max(length(reference), 1e-3)


def by_tree(samples: list[Sample], settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, every token forwarded once."""
    model = tiny_model()
    prepare(model)
    rows = rows_of(samples, settings)
    total = torch.zeros((), dtype=torch.float64)
    for packed in pack(rows):
        part = [rows[int(number)] for number in packed.rows]
        total = total + loss_of(log_probs(model, packed), part, settings)[0]
    return total.detach(), gradient_of(model, total)


def by_row(samples: list[Sample], settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The same, every row by itself."""
    model = tiny_model()
    rows = rows_of(samples, settings)
    total, _ = loss_of(log_probs_by_row(model, rows), rows, settings)
    return total.detach(), gradient_of(model, total)


def gradient_of(model: torch.nn.Module, loss: Tensor) -> Tensor:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.double().flatten() for gradient in gradients])


def length(vector: Tensor) -> float:
    return float((vector * vector).sum()) ** 0.5
