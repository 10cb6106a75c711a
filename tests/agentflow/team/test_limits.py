"""Limits of an episode: it stops, answers, and names the limit."""

from typing import TypeVar

import anyio
import pytest

from agentflow.actors import Supervisor
from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.errors import ConfigurationError
from agentflow.models import Call, Completion, Prices
from agentflow.team import Team, TeamAgent
from agentflow.testing import VirtualTimeLoop
from agentflow.trace import Ending, Episode, Failure, SolutionRequest
from tests.agentflow.team._model import FunctionModel, unasked
from tests.agentflow.team._solving import TASK, Book, Script, diary_sandbox, roles, solved

T = TypeVar("T")


class Slow(FunctionModel):
    """Takes its time; for the answer another one."""

    def __init__(self, script: Script, seconds: float, answering: float = 1.0) -> None:
        super().__init__(script)
        self._seconds = seconds
        self._answering = answering

    async def complete(self, call: Call[T]) -> Completion[T]:
        await anyio.sleep(self._answering if isinstance(call.request, SolutionRequest) else self._seconds)
        return await super().complete(call)


async def slowly(model: FunctionModel, book: Book, **settings: object) -> Episode:
    members = Team({"planner": model, "generator": model})
    async with diary_sandbox() as sandbox, Supervisor(members.specs(), name="team"):
        tools = await sandbox.tools("diary_write")
        limits = EpisodeSettings.model_validate(settings)
        engine = EpisodeEngine(agent=TeamAgent(members), tools=tools, settings=limits)
        return await engine.solve(TASK, sandbox, book.open())


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["virtual-time"]
)
class TestTime:
    """Tests in virtual time."""

    @pytest.mark.promise("team:solve:time")
    async def test_when_time_is_up_the_call_in_progress_is_cancelled_and_the_episode_answers(self) -> None:
        book = Book()
        episode = await slowly(Slow(Script(turns=9), 30), book, max_seconds=100, answer_seconds=20)
        assert episode.ending is Ending.TIME
        assert episode.answer == "1871"
        assert episode.seconds == pytest.approx(81, abs=0.1)  # pyright: ignore[reportUnknownMemberType]
        assert list(book.entries) == ["analysis", "1/next", "end", "solution"]
        assert await slowly(FunctionModel(unasked), book, max_seconds=100, answer_seconds=20) == episode

    @pytest.mark.promise("team:solve:time")
    async def test_an_answer_that_exceeds_its_reserved_time_fails(self) -> None:
        book = Book()
        episode = await slowly(
            Slow(Script(turns=9), 30, answering=60), book, max_seconds=100, answer_seconds=20
        )
        why = "the episode's limit of 100 seconds passed before the answer"
        assert (episode.ending, episode.solution) == (Ending.TIME, None)
        assert episode.failure == Failure("timeout", why)
        assert episode.seconds == pytest.approx(100, abs=0.1)  # pyright: ignore[reportUnknownMemberType]
        assert await slowly(FunctionModel(unasked), book, max_seconds=100, answer_seconds=20) == episode

    @pytest.mark.promise("team:solve:time")
    async def test_at_most_half_of_the_time_is_reserved_for_the_answer(self) -> None:
        episode = await slowly(Slow(Script(turns=9), 4), Book(), max_seconds=10, answer_seconds=30)
        assert episode.ending is Ending.TIME
        assert [exchange.key for exchange in episode.exchanges] == ["analysis", "solution"]


@pytest.mark.promise("team:solve:limits")
async def test_token_and_cost_limits_end_the_turns_but_not_the_answer() -> None:
    # Each call reads 100 tokens and writes 10.
    episode, model = await solved(Script(turns=9), max_tokens=440)
    assert (episode.ending, episode.answer) == (Ending.TOKENS, "1871")
    assert roles(model) == ["analyst", "planner", "executor", "verifier", "generator"]

    book, prices = Book(), {"planner": Prices(input=10_000, output=0)}
    episode, model = await solved(Script(turns=9), book=book, max_cost=2, prices=prices)
    assert (episode.ending, episode.answer) == (Ending.MONEY, "1871")
    assert roles(model).count("planner") == 2
    again, _ = await solved(unasked, book=book, max_cost=2, prices=prices)
    assert again == episode


@pytest.mark.promise("team:solve:limits")
async def test_a_cost_limit_requires_prices() -> None:
    with pytest.raises(ConfigurationError, match="max_cost: a cost limit needs the models' prices"):
        await solved(Script(), max_cost=1)


@pytest.mark.promise("team:solve:memory")
async def test_a_memory_that_is_too_long_is_summarised_and_the_episode_keeps_all_turns() -> None:
    book = Book()
    episode, model = await solved(Script(turns=12), book=book, max_turns=12, memory_chars=1_500)
    shown = next(call.request.memory for call in model.calls if isinstance(call.request, SolutionRequest))
    assert 0 < shown.summarised < 12
    assert shown.summary.endswith("turns.")
    assert shown.summarised + len(shown.turns) == 12
    assert [turn.number for turn in episode.turns] == list(range(1, 13))
    keys = [key for key in book.entries if key.startswith("summary/")]
    assert 1 <= len(keys) <= 6
    assert episode.calls["generator"] == len(keys) + 1
    longest = max(len(str(call.messages)) for call in model.calls)
    assert longest < 20_000


@pytest.mark.promise("team:solve:memory")
async def test_without_a_summary_the_oldest_turns_are_listed_and_cut() -> None:
    def fail(request: object) -> object:
        raise ZeroDivisionError("a bug")

    episode, model = await solved(
        Script(turns=12, summary=fail), max_turns=12, memory_chars=1_500, verify="merged"
    )
    assert episode.answer == "1871"
    shown = next(call.request.memory for call in model.calls if isinstance(call.request, SolutionRequest))
    assert "1. diary_write" in shown.summary
    assert len(shown.summary) < 1_500
