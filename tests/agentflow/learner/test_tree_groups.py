"""Tree rollouts with a deterministic model and a real team."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar, cast

import pytest

from agentflow.actors import Supervisor
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.learner._config import GrowthRules
from agentflow.learner._group_rollout import GroupSettings
from agentflow.learner._groups import FailureCause, Group, TaskDraw
from agentflow.learner._tree_groups import TreeGroupRollout, TreeGrower
from agentflow.models import Accounts, Call, Completion, make_model
from agentflow.sandbox import Sandbox
from agentflow.serving import ModelServer
from agentflow.trace import (
    Plan,
    PlanRequest,
    Proposal,
    Solution,
    SolutionRequest,
    Task,
    Tokens,
    Usage,
)
from tests._vllm import settings_of
from tests.agentflow.learner._training import FakePlayer

pytestmark = pytest.mark.usefixtures("book")

T = TypeVar("T")

DRAW = TaskDraw(4, Task(index=0, id="t", question="What stands in the book?", references=("sea",)))
RULES = GrowthRules(max_depth=2, branching_factor=3, depth_threshold=2)


class Drawing:
    """Plans by the seed of its call; answers with the last word that was looked up."""

    name = "drawing"
    vision = False

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost

    async def complete(self, call: Call[T]) -> Completion[T]:
        if self.lost:
            self.lost -= 1
            raise ModelFailure(ModelFailureKind.UNAVAILABLE, "nobody answers")
        value, tokens = self._say(cast("Call[object]", call))
        return Completion(
            value=cast("T", value), text="", usage=Usage(1, 1, 1), model=self.name, tokens=tokens
        )

    def _say(self, call: Call[object]) -> tuple[object, Tokens | None]:
        if isinstance(call.request, SolutionRequest):
            action = call.request.memory.turns[-1].action
            assert action is not None
            return Solution("", str(action.arguments["word"])), None
        assert isinstance(call.request, PlanRequest)
        assert call.sampling is not None
        draw = Random(call.sampling.seed)
        words = [draw.choice(["sea", "tide", "moon"]) for _ in range(call.request.count)]
        plan = Plan(tuple(Proposal("look", "book_look", {"word": word}) for word in words))
        sampled = tuple(draw.randrange(50) for _ in range(4))
        return plan, Tokens(prompt=(1, 2), sampled=sampled, logprobs=(-1.0,) * 4)


@asynccontextmanager
async def tree_groups(
    model: Drawing, player: FakePlayer, lost: Callable[[], None] = lambda: None
) -> AsyncGenerator[TreeGroupRollout]:
    async def ready() -> None:
        lost()

    async with Sandbox(backends=[]) as base:
        trees = TreeGrower(model, model, base, await base.tools(), RULES, seed=7)
        async with Supervisor(trees.team.specs(), name="tree_groups"):
            yield TreeGroupRollout(
                trees, player, GroupSettings(trained=("planner",), temperature=1.0), engine_ready=ready
            )


async def group_of(model: Drawing, player: FakePlayer | None = None, version: int = 0) -> Group:
    async with tree_groups(model, player or FakePlayer()) as playing:
        playing.version = version
        return await playing.group(DRAW, 8)


@pytest.mark.promise("learner:trees")
async def test_a_group_is_a_tree_whose_leaves_are_scored_and_the_same_seed_is_the_same_tree() -> None:
    group = await group_of(Drawing())
    assert (group.number, group.name, group.failures) == (4, "t@4", ())
    assert sum(sample.multiplicity for sample in group.samples) == 9
    assert {sample.reward for sample in group.samples} == {0.0, 1.0}
    assert all(len(sample.calls) == 2 for sample in group.samples)
    assert await group_of(Drawing()) == group
    assert await group_of(Drawing(), version=1) != group


@pytest.mark.promise("learner:trees")
async def test_a_tree_that_loses_its_engine_is_grown_again_once_it_answers() -> None:
    waited: list[bool] = []
    async with tree_groups(Drawing(lost=1), FakePlayer(), lambda: waited.append(True)) as playing:
        group = await playing.group(DRAW, 8)
    assert waited == [True]
    assert group == await group_of(Drawing())


@pytest.mark.promise("learner:trees")
async def test_leaves_that_can_t_be_scored_are_left_out_with_the_reason() -> None:
    def reward(answer: str, task: Task) -> float:
        del task
        if answer == "moon":
            raise ValueError("no moon")
        return 1.0

    group = await group_of(Drawing(), FakePlayer(reward=reward))
    assert group.samples
    assert {(failure.kind, failure.message) for failure in group.failures} == {
        (FailureCause.REWARD, "reward: ValueError: no moon")
    }


@pytest.mark.timeout(900)
@pytest.mark.promise("learner:trees")
async def test_trees_grow_on_a_real_vllm_with_the_tokens_that_it_read_and_wrote(vllm: ModelServer) -> None:
    settings = settings_of(
        vllm, max_text_chars=24, max_tokens=600, tokens=True, temperature=1.0, call_seconds=600
    )
    async with make_model(settings, Accounts()) as model, Sandbox(backends=[]) as base:
        trees = TreeGrower(model, Drawing(), base, await base.tools(), RULES, seed=7)
        async with Supervisor(trees.team.specs(), name="tree_groups"):
            tree_groups = TreeGroupRollout(
                trees, FakePlayer(), GroupSettings(trained=("planner",), temperature=1.0, seconds=800)
            )
            group = await tree_groups.group(DRAW, 8)
    assert group.failures == ()
    assert sum(sample.multiplicity for sample in group.samples) >= len(group.samples) >= 2
    first = {sample.calls[0] for sample in group.samples}
    assert len(first) == 1, "leaves of one tree begin with the same call"
    for call in (call for sample in group.samples for call in sample.calls):
        assert call.prompt
        assert len(call.sampled) == len(call.logprobs) > 0
