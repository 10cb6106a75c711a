"""Trees whose branches are steps of the policy, drawn by a model that is seeded call by call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar, cast

import pytest

from agentflow.actors import Supervisor
from agentflow.engine import BranchSandboxes, EpisodeEngine, Grower, GrowthSettings
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.journal import MemoryPage
from agentflow.learner._config import EpisodeRules
from agentflow.learner._exploration import DrawSeededModel, PolicyExplorer
from agentflow.models import Call, Completion, Message
from agentflow.sandbox import Sandbox, Tool
from agentflow.team import ObservationLimits, Team, TeamAgent
from agentflow.trace import (
    Assessment,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    NextStep,
    NextStepRequest,
    QueryAnalysis,
    Seed,
    Solution,
    Task,
    Tree,
    Usage,
    VerificationRequest,
)

pytestmark = pytest.mark.usefixtures("book")

T = TypeVar("T")

TOPIC = "What stands in the book?"
WORDS = ("sea", "tide", "moon")
DONE = Decision("", Assessment.INCOMPLETE, stop=False)


class Stepping:
    """Looks up a word drawn by the seed of the call; the other roles need no model."""

    name = "stepping"
    vision = False

    def __init__(self, *, words: tuple[str, ...] = WORDS) -> None:
        self.words = words
        self.prompts: dict[str, tuple[Message, ...]] = {}
        """Prompts of the planner by the words of the steps before."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        return Completion(
            value=cast("T", self._answer(cast("Call[object]", call))),
            text="",
            usage=Usage(1, 1, 1),
            model=self.name,
        )

    def _answer(self, call: Call[object]) -> object:
        request = call.request
        if isinstance(request, CommandRequest):
            return Command("", {"word": request.step.context.removeprefix("word: ")})
        if isinstance(request, VerificationRequest):
            return DONE
        if isinstance(request, DecisionRequest):
            return DecidedStep(DONE, self._step(request.next, call))
        if isinstance(request, NextStepRequest):
            return self._step(request, call)
        return QueryAnalysis("", "", "", "") if call.role == "analyst" else Solution("", "")

    def _step(self, request: NextStepRequest, call: Call[object]) -> NextStep:
        self.prompts[" ".join(turn.step.context for turn in request.memory.turns)] = call.messages
        draw = Random(0 if call.sampling is None else call.sampling.seed)
        word = draw.choice(self.words)
        if word == "broken":
            raise ModelFailure(ModelFailureKind.GARBAGE, "the answer is no nextstep")
        return NextStep("", f"word: {word}", "", "book_look" if word != "fly" else "fly")


@asynccontextmanager
async def opened(model: Stepping, rules: EpisodeRules) -> AsyncGenerator[tuple[Team, Sandbox, list[Tool]]]:
    team = Team(
        {"planner": DrawSeededModel(model), "generator": model},
        verify="off",
        short_prompts=rules.short_prompts,
    )
    async with Sandbox(backends=[]) as base, Supervisor(team.specs(), name="exploration"):
        yield team, base, await base.tools()


async def tree_of(model: Stepping, *, version: int = 0, **rules: object) -> Tree:
    """Grow the tree of the topic."""
    chosen = EpisodeRules.model_validate({"short_prompts": True, **rules})
    async with opened(model, chosen) as (team, base, tools):
        grower = Grower(
            GrowthSettings(max_depth=2, branching_factor=3, depth_threshold=2),
            run="round",
            planner=PolicyExplorer(team, chosen, ObservationLimits(), (7, version)),
            executor=team.executor,
            verifier=team.verifier,
            sandboxes=BranchSandboxes(base, tools),
        )
        return await grower.grow(Seed(index=0, id="s", content=TOPIC), MemoryPage())


def words_of(tree: Tree) -> list[str]:
    return [str(node.call.arguments["word"]) for node in tree.nodes if node.action is not None]


@pytest.mark.promise("supervisor:flywheel:trees")
@pytest.mark.parametrize("verify", ["separate", "merged"])
async def test_branches_are_different_draws_and_the_same_weights_and_seed_give_the_same_tree(
    verify: str,
) -> None:
    tree = await tree_of(Stepping(), verify=verify)
    words = words_of(tree)
    assert len(words) == len(set(words)) > 1
    assert await tree_of(Stepping(), verify=verify) == tree
    others = [words_of(await tree_of(Stepping(), version=version, verify=verify)) for version in (1, 2, 3)]
    assert any(other != words for other in others)


@pytest.mark.promise("supervisor:flywheel:trees")
async def test_steps_that_are_not_usable_are_drawn_again_and_never_end_the_tree() -> None:
    tree = await tree_of(Stepping(words=("broken", "fly", "sea")))
    assert set(words_of(tree)) == {"sea"}
    nothing = await tree_of(Stepping(words=("broken", "fly")))
    assert len(nothing.nodes) == 1
    assert list(nothing.stalled.values()) == ["3 of 3 children: nothing new to try"]


@pytest.mark.promise("supervisor:flywheel:trees")
@pytest.mark.parametrize("verify", ["separate", "merged"])
async def test_the_prompt_at_a_node_is_that_of_an_episode_with_the_same_steps(verify: str) -> None:
    growing = Stepping()
    await tree_of(growing, verify=verify)
    playing = Stepping(words=("sea",))
    rules = EpisodeRules.model_validate({"short_prompts": True, "verify": verify, "max_turns": 2})
    async with opened(playing, rules) as (team, base, tools):
        engine = EpisodeEngine(agent=TeamAgent(team), tools=tools, settings=rules.episode)
        await engine.solve(Task(index=0, id="t", question=TOPIC), base, MemoryPage())
    shared = growing.prompts.keys() & playing.prompts.keys()
    assert "word: sea" in shared
    assert [growing.prompts[steps] for steps in sorted(shared)] == [
        playing.prompts[steps] for steps in sorted(shared)
    ]
