"""Groups whose episodes share their beginnings, with a deterministic model, a real sandbox and a real vLLM."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar, cast

import pytest
from msgspec.structs import replace

from agentflow.engine import BranchingEngine, BranchSandboxes, EpisodeAgent, EpisodeSettings, Leaf
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.journal import MemoryPage
from agentflow.learner import load_train_config
from agentflow.learner._episode_runner import EpisodeSeededModel, open_episode_runner
from agentflow.learner._group_rollout import GroupRollout, GroupSettings
from agentflow.learner._groups import EpisodeResult, FailureCause, Group, TaskDraw
from agentflow.models import Call, Completion, Model, ToolCall
from agentflow.rollouts import BranchingSettings, assign
from agentflow.sandbox import Sandbox
from agentflow.serving import ModelServer
from agentflow.team import ToolAgent
from agentflow.trace import MemoryBlobStore, Task, Tokens, Usage
from tests._vllm import settings_of
from tests.agentflow.learner._training import FakePlayer

pytestmark = pytest.mark.usefixtures("book")

T = TypeVar("T")

DRAW = TaskDraw(4, Task(index=0, id="t", question="What stands in the book?", references=("sea",)))


class Drawing:
    """Looks up a word drawn by the seed of its call, twice, and answers with the last one."""

    name = "drawing"
    vision = False

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.calls = 0

    async def complete(self, call: Call[T]) -> Completion[T]:
        if self.lost:
            self.lost -= 1
            raise ModelFailure(ModelFailureKind.UNAVAILABLE, "nobody answers")
        self.calls += 1
        assert call.sampling is not None
        draw = Random(call.sampling.seed)
        word = draw.choice(["sea", "tide", "moon"])
        looked = len(call.messages) // 2
        text = word if looked == 3 else ""
        calls = () if text else (ToolCall("look", "book_look", {"word": word}),)
        # The same word has the same tokens.
        sampled = tuple(word.encode())
        tokens = Tokens(prompt=(1, looked), sampled=sampled, logprobs=(-1.0,) * len(sampled), version="3")
        return Completion(
            value=cast("T", text),
            text=text,
            calls=calls,
            usage=Usage(1, 1, len(sampled)),
            model=self.name,
            tokens=tokens,
        )


class TreePlayer(FakePlayer):
    """Plays trees with a tool-calling agent that is seeded as in trainings."""

    def __init__(
        self, model: Model, limits: EpisodeSettings | None = None, leaves: int = 8, **more: object
    ) -> None:
        super().__init__(**more)  # pyright: ignore[reportArgumentType]
        self.model = model
        self.limits = limits or EpisodeSettings(max_turns=3)
        self.leaves = leaves

    async def branch(self, task: Task, seed: str) -> Sequence[Leaf]:
        @asynccontextmanager
        async def agents(path: str) -> AsyncGenerator[EpisodeAgent]:
            model = EpisodeSeededModel(self.model, "agent")
            model.begin(f"{seed}/{path}", None)
            yield ToolAgent(model, MemoryBlobStore())

        async with Sandbox(backends=[]) as base:
            tools = await base.tools()
            engine = BranchingEngine(
                agents=agents,
                roles=("agent",),
                tools=tools,
                settings=self.limits,
                sandboxes=BranchSandboxes(base, tools),
                search=BranchingSettings(width=2, leaves=self.leaves).make_search,
            )
            return await engine.solve(task, MemoryPage())


async def group_of(
    player: TreePlayer, results: list[EpisodeResult] | None = None, waited: list[bool] | None = None
) -> Group:
    async def ready() -> None:
        if waited is not None:
            waited.append(True)

    rollout = GroupRollout(
        player,
        GroupSettings(trained=("agent",), temperature=1.0, seed=7),
        branch=player.branch,
        engine_ready=ready,
        on_result=None if results is None else results.append,
    )
    return await rollout.group(DRAW, 8)


@pytest.mark.promise("learner:trees")
async def test_a_group_is_a_tree_whose_leaves_are_scored_and_the_same_seed_is_the_same_tree() -> None:
    group = await group_of(TreePlayer(Drawing()))
    assert (group.number, group.name, group.failures) == (4, "t@4", ())
    assert sum(sample.multiplicity for sample in group.samples) == 8
    assert all(len(sample.calls) == 3 for sample in group.samples)
    assert all(sample.details["version"] == 3 for sample in group.samples)
    assert await group_of(TreePlayer(Drawing())) == group


@pytest.mark.promise("learner:trees")
async def test_calls_that_leaves_share_have_the_same_node_and_were_sampled_once() -> None:
    model, results = Drawing(), list[EpisodeResult]()
    group = await group_of(TreePlayer(model), results)
    by_node: dict[str, set[Tokens]] = {}
    for sample in group.samples:
        assert sample.nodes and len(sample.nodes) == len(sample.calls)
        for node, call in zip(sample.nodes, sample.calls, strict=True):
            by_node.setdefault(node, set()).add(call)
    assert all(len(calls) == 1 for calls in by_node.values())
    # Independent episodes make 24 calls.
    assert len(by_node) <= model.calls < 8 * 3
    independent = sum(len(call.sampled) for sample in group.samples for call in sample.calls)
    sampled = sum(result.sampled_tokens for result in results)
    assert sampled == sum(sample.details["sampled_tokens"] for sample in group.samples) < independent


@pytest.mark.promise("learner:trees")
async def test_a_tree_that_loses_its_engine_is_grown_again_once_it_answers() -> None:
    waited: list[bool] = []
    group = await group_of(TreePlayer(Drawing(lost=1)), waited=waited)
    assert waited == [True]
    assert group == await group_of(TreePlayer(Drawing()))


@pytest.mark.promise("learner:trees")
async def test_leaves_that_can_t_be_scored_are_left_out_with_the_reason() -> None:
    def reward(answer: str, task: Task) -> float:
        del task
        if answer == "moon":
            raise ValueError("no moon")
        return 1.0

    group = await group_of(TreePlayer(Drawing(), reward=reward))
    assert group.samples
    assert {(failure.kind, failure.message) for failure in group.failures} == {
        (FailureCause.REWARD, "reward: ValueError: no moon")
    }


@pytest.mark.timeout(900)
@pytest.mark.promise("learner:trees")
async def test_trees_grow_on_a_real_vllm_with_the_tokens_that_it_read_and_wrote(vllm: ModelServer) -> None:
    config = load_train_config(
        overrides=[
            "backbone=debug",
            "branching.width=2",
            "schedule.episodes_per_task=4",
            "episodes.max_turns=2",
            "episodes.episode_seconds=800",
        ]
    )
    policy = settings_of(
        vllm, max_text_chars=24, max_tokens=600, tokens=True, temperature=1.0, call_seconds=600
    )
    models = {**config.episodes.models, "planner": policy}
    assignment = assign(config.rules_for("training"), [DRAW.task])
    async with open_episode_runner(config, assignment, models) as runner:
        leaves = await runner.branch(DRAW.task, "seed")
        group = await GroupRollout(
            runner, replace(GroupSettings.of(config), seconds=800), branch=runner.branch
        ).group(DRAW, 4)
    assert sum(leaf.episode.drawn for leaf in leaves if leaf.episode) == 4
    assert group.failures == ()
    assert sum(sample.multiplicity for sample in group.samples) == 4
    for call in (call for sample in group.samples for call in sample.calls):
        assert call.prompt
        assert len(call.sampled) == len(call.logprobs) > 0
