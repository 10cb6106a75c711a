"""Samples of trees: every leaf is an episode, weighted by its multiplicity."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from random import Random

import pytest
import torch
from msgspec import structs
from torch import Tensor

from agentflow.engine import BranchSandboxes, Grower, GrowthSettings, plans_of
from agentflow.journal import Page
from agentflow.learner import Sample
from agentflow.learner._groups import samples_of_tree
from agentflow.learner.compute import log_probs, log_probs_by_row, prepare
from agentflow.learner.losses import LossSettings, loss_of, rows_of
from agentflow.learner.packing import pack
from agentflow.sandbox import Sandbox
from agentflow.trace import Plan, PlanRequest, Proposal, Reply, Tokens, Tree, digest
from tests.agentflow.engine._functions import SEED, Act, JudgeBy, PlanBy, fresh_page
from tests.agentflow.learner._models import VOCABULARY, tiny_model

pytestmark = pytest.mark.usefixtures("book")

LOSSES = ["flow_grpo", "grpo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce"]


class Tokenised(PlanBy):
    """A planner that draws from few actions, so that it draws some twice, and whose tokens go on along a path."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda _: ())
        self._seed = seed

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        path = [step.call.canonical for step in request.path]
        draw = Random(digest([self._seed, path]))
        words = [draw.choice(["sea", "tide", "moon"]) for _ in range(request.count)]
        plan = Plan(tuple(Proposal("look", "book_look", {"word": word}) for word in words))
        prompt = (2, *(3 + ord(letter) % 32 for step in path for letter in step[-8:]))
        sampled = tuple(draw.randrange(2, VOCABULARY) for _ in range(draw.randint(1, 6)))
        logprobs = tuple(-4.0 + draw.random() for _ in sampled)
        return Reply(
            value=plan, tokens=Tokens(prompt=prompt, sampled=sampled, logprobs=logprobs, version="3")
        )


async def grow(planner: PlanBy, settings: GrowthSettings, page: Page) -> Tree:
    async with Sandbox(backends=[]) as base:
        grower = Grower(
            settings,
            run="run",
            planner=planner,
            executor=Act(),
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools()),
        )
        return await grower.grow(SEED, page)


async def grown(seed: int) -> tuple[Tree, list[Sample]]:
    """A tree, and its leaves as a group."""
    settings = GrowthSettings(max_depth=3, branching_factor=3, depth_threshold=2, merge_duplicates=True)
    page, draw = fresh_page(), Random(seed)
    tree = await grow(Tokenised(seed), settings, page)
    rewards = {leaf.id: draw.random() for leaf in tree.leaves()}
    return tree, samples_of_tree(tree, plans_of(tree, page), rewards, group="g", temperature=1.0, version=2)


@pytest.mark.promise("learner:trees")
async def test_each_leaf_is_an_episode_with_the_calls_on_its_path() -> None:
    tree, samples = await grown(1)
    leaves = list(tree.leaves())
    assert [sample.id for sample in samples] == [f"g/{leaf.id}" for leaf in leaves]
    for sample, leaf in zip(samples, leaves, strict=True):
        assert len(sample.calls) == leaf.depth == 3
        assert sample.details["version"] == 3
    # Leaves of the same parent share every call.
    families = {leaf.parent: sample.calls for sample, leaf in zip(samples, leaves, strict=True)}
    assert all(sample.calls == families[leaf.parent] for sample, leaf in zip(samples, leaves, strict=True))
    # Nothing that was proposed is lost: what is merged counts as often.
    assert sum(sample.multiplicity for sample in samples) == 3 * 3
    assert len(samples) < 9


@pytest.mark.promise("learner:trees")
async def test_leaves_without_a_reward_are_left_out_and_a_last_call_without_a_child_belongs_to_its_leaf() -> (
    None
):
    async def plan(request: PlanRequest) -> Reply[Plan]:
        tokens = Tokens(prompt=(1, len(request.path)), sampled=(5,), logprobs=(-1.0,))
        proposals = () if request.path else (Proposal("", "book_look", {"word": "sea"}),)
        return Reply(value=Plan(proposals), tokens=tokens)

    planner, page = Tokenised(0), fresh_page()
    planner.plan = plan
    settings = GrowthSettings(max_depth=2, branching_factor=1, merge_duplicates=True)
    tree = await grow(planner, settings, page)
    [leaf] = tree.leaves()
    plans = plans_of(tree, page)
    [sample] = samples_of_tree(tree, plans, {leaf.id: 1.0}, group="g", temperature=1.0)
    assert [call.prompt for call in sample.calls] == [(1, 0), (1, 1)]
    assert samples_of_tree(tree, plans, {}, group="g", temperature=1.0) == []


@pytest.mark.promise("learner:multiplicity")
@pytest.mark.parametrize("name", LOSSES)
async def test_merged_duplicates_have_the_gradient_of_independent_rows(name: str) -> None:
    for seed in (1, 2, 3):
        _, merged = await grown(seed)
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
