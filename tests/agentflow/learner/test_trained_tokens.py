"""Tokens trained on are those of the requests: random trees with long, empty and failed results, and unusable answers."""

from collections.abc import Iterator
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentflow.actors import Supervisor
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.learner._config import GrowthRules
from agentflow.learner._group_rollout import GroupSettings
from agentflow.learner._groups import Group, TaskDraw
from agentflow.learner._tree_groups import TreeGroupRollout, TreeGrower
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.models import Call, Completion, TextPart
from agentflow.sandbox import Sandbox, register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.team import ObservationLimits
from agentflow.trace import Plan, PlanRequest, Proposal, Solution, SolutionRequest, Task, Tokens, Usage
from tests.agentflow.learner._training import FakePlayer

T = TypeVar("T")

DRAW = TaskDraw(0, Task(index=0, id="t", question="Which page names the sea?", references=("sea",)))
LIMITS = ObservationLimits(each=900, total=1_500)


class Library:
    """Model whose tokens are the bytes that it reads and draws, and that remembers its calls."""

    name = "library"
    vision = False

    def __init__(self) -> None:
        self.plans: list[Tokens] = []
        self.solutions: list[SolutionRequest] = []

    async def complete(self, call: Call[T]) -> Completion[T]:
        if isinstance(call.request, SolutionRequest):
            self.solutions.append(call.request)
            return self._said(call, Solution("", "sea" * (len(self.solutions) % 2)))
        assert isinstance(call.request, PlanRequest) and call.sampling is not None
        draw = Random(call.sampling.seed)
        texts = (part.text for each in call.messages for part in each.parts if isinstance(part, TextPart))
        read = tuple("".join(texts).encode())
        tokens = tuple(self._drawn(read, draw) for _ in range(draw.choice([1, 1, 2, 3])))
        if draw.random() < 0.15:
            raise ModelFailure(ModelFailureKind.GARBAGE, "no plan", answer_tokens=tokens)
        words = [f"{draw.choice(['sea', 'tide', 'moon', ''])}{draw.randrange(3)}" for _ in range(2)]
        plan = Plan(tuple(Proposal("look", "hall_read", {"word": word}) for word in words))
        return self._said(call, plan, tokens)

    def _drawn(self, read: tuple[int, ...], draw: Random) -> Tokens:
        sampled = tuple(draw.randrange(256) for _ in range(draw.randint(1, 6)))
        self.plans.append(Tokens(prompt=read, sampled=sampled, logprobs=(-1.0,) * len(sampled)))
        return self.plans[-1]

    def _said(self, call: Call[T], value: object, tokens: tuple[Tokens, ...] = ()) -> Completion[T]:
        assert isinstance(value, call.reply)
        return Completion(
            value=value,
            text="",
            usage=Usage(1, 1, 1),
            model=self.name,
            tokens=tokens[-1] if tokens else None,
            unusable=tokens[:-1],
        )


@pytest.fixture
def hall() -> Iterator[None]:
    """A tool whose pages are long, short, empty or missing."""
    before = dict(registered_tools)

    @register_api_tool("hall:read", read_only=True, open_world=False)
    async def read(word: str) -> str:
        """Read a page of the hall.

        :param word: the page
        """
        if not word.strip("0123456789"):
            raise ValueError(f"there is no page {word}")
        chance = Random(word)
        return " ".join(f"{word}{chance.randrange(999)}" for _ in range(chance.choice([0, 30, 3_000])))

    del read
    yield
    registered_tools.clear()
    registered_tools.update(before)


async def group_of(model: Library, depth: int, seed: int) -> Group:
    rules = GrowthRules(max_depth=depth, branching_factor=2, depth_threshold=2)
    async with Sandbox(backends=[]) as base:
        trees = TreeGrower(model, model, base, await base.tools(), rules, seed, observations=LIMITS)
        async with Supervisor(trees.team.specs(), name="trees"):
            playing = TreeGroupRollout(
                trees, FakePlayer(), GroupSettings(trained=("planner",), temperature=1.0)
            )
            return await playing.group(DRAW, 4)


@pytest.mark.promise("learner:exact-trees")
@pytest.mark.usefixtures("hall")
@given(depth=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(
    max_examples=8,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
async def test_the_tokens_trained_on_are_those_of_the_planners_requests(depth: int, seed: int) -> None:
    model = Library()
    group = await group_of(model, depth, seed)
    assert group.failures == ()
    calls = [call for sample in group.samples for call in sample.calls]
    assert set(calls) == set(model.plans)
    samples = [sample for sample in group.samples if sample.calls]
    rows = rows_of(samples, LossSettings(kl_coef=0.0))
    assert len(rows) == sum(len(sample.calls) for sample in samples)
    for row, call in zip(rows, calls, strict=True):
        assert tuple(row.ids) == (*call.prompt, *call.sampled)
        assert tuple(row.trained) == (*[False] * len(call.prompt), *[True] * len(call.sampled))
    prompts = {bytes(call.prompt).decode() for call in model.plans}
    for request in model.solutions:
        results = [turn.result for turn in request.memory.turns]
        assert sum(map(len, results)) <= LIMITS.total + LIMITS.each + 100 * len(results)
        # A leaf at the greatest depth is the only result that no planner is shown.
        seen = results[: depth - 1]
        assert any(all(f">\n{text}\n<" in prompt or text == "(empty)" for text in seen) for prompt in prompts)


@pytest.mark.promise("learner:exact-trees")
@pytest.mark.usefixtures("hall")
async def test_long_results_are_answered_from_the_windows_that_the_planner_was_shown() -> None:
    model = Library()
    for seed in range(4):
        await group_of(model, 2, seed)
    results = [turn.result for request in model.solutions for turn in request.memory.turns]
    assert any("characters …" in result for result in results)
    assert any(result.startswith("The call failed: ") for result in results)
    assert max(map(len, results)) <= LIMITS.each
