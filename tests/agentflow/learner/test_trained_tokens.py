"""Tokens trained on are those of the requests: random trees with long, empty and failed results, and unusable answers."""

from collections.abc import Iterator
from random import Random
from typing import TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentflow.engine import EpisodeSettings
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.learner._group_rollout import GroupRollout, GroupSettings
from agentflow.learner._groups import Group, TaskDraw
from agentflow.learner.losses import LossSettings, rows_of
from agentflow.models import Call, Completion, TextPart, ToolCall, ToolReply
from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.trace import Task, Tokens, Usage
from tests.agentflow.learner.test_tree_groups import TreePlayer

T = TypeVar("T")

DRAW = TaskDraw(0, Task(index=0, id="t", question="Which page names the sea?", references=("sea",)))
EACH, TOTAL = 900, 1_500
"""Characters of a result, and of all results, in a prompt."""


class Library:
    """Model whose tokens are the bytes that it reads and draws, and that remembers its calls."""

    name = "library"
    vision = False

    def __init__(self) -> None:
        self.answers: list[Tokens] = []
        self.results: list[str] = []

    async def complete(self, call: Call[T]) -> Completion[T]:
        assert call.sampling is not None
        draw = Random(call.sampling.seed)
        replies = [part for each in call.messages for part in each.parts if isinstance(part, ToolReply)]
        shown = [part.text for reply in replies for part in reply.parts if isinstance(part, TextPart)]
        self.results += shown
        read = tuple("".join([repr(each.parts) for each in call.messages]).encode())
        tokens = tuple(self._drawn(read, draw) for _ in range(draw.choice([1, 1, 2, 3])))
        if draw.random() < 0.15:
            raise ModelFailure(ModelFailureKind.GARBAGE, "no call", answer_tokens=tokens)
        word = f"{draw.choice(['sea', 'tide', 'moon', ''])}{draw.randrange(3)}"
        calls = (ToolCall("look", "hall_read", {"word": word}),) if call.may_call else ()
        return Completion(
            value=cast("T", word),
            text=word,
            calls=calls,
            usage=Usage(1, 1, 1),
            model=self.name,
            tokens=tokens[-1],
            unusable=tokens[:-1],
        )

    def _drawn(self, read: tuple[int, ...], draw: Random) -> Tokens:
        sampled = tuple(draw.randrange(256) for _ in range(draw.randint(1, 6)))
        self.answers.append(Tokens(prompt=read, sampled=sampled, logprobs=(-1.0,) * len(sampled)))
        return self.answers[-1]


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
    limits = EpisodeSettings(max_turns=depth, max_observation_chars=EACH, memory_chars=TOTAL)
    player = TreePlayer(model, limits, leaves=4)
    rules = GroupSettings(trained=("agent",), temperature=1.0, seed=seed)
    rollout = GroupRollout(player, rules, branch=player.branch)
    return await rollout.group(DRAW, 4)


@pytest.mark.promise("learner:exact-trees")
@pytest.mark.usefixtures("hall")
@given(depth=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(
    max_examples=8,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
async def test_the_tokens_trained_on_are_those_of_the_requests(depth: int, seed: int) -> None:
    model = Library()
    group = await group_of(model, depth, seed)
    assert group.failures == ()
    calls = [call for sample in group.samples for call in sample.calls]
    assert set(calls) == set(model.answers)
    samples = [sample for sample in group.samples if sample.calls]
    rows = rows_of(samples, LossSettings(kl_coef=0.0))
    assert len(rows) == sum(len(sample.calls) for sample in samples)
    for row, call in zip(rows, calls, strict=True):
        assert tuple(row.ids) == (*call.prompt, *call.sampled)
        assert tuple(row.trained) == (*[False] * len(call.prompt), *[True] * len(call.sampled))


@pytest.mark.promise("learner:exact-trees")
@pytest.mark.usefixtures("hall")
async def test_long_results_are_shown_in_windows_also_in_trees() -> None:
    model = Library()
    for seed in range(4):
        await group_of(model, 3, seed)
    assert any("characters …" in result for result in model.results)
    assert any(result.startswith("The call failed: ") for result in model.results)
    assert max(map(len, model.results)) <= EACH
