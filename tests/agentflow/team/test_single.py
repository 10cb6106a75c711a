"""Episodes of a single agent: calls, final answer, and resumption."""

import re
from collections.abc import Sequence
from typing import TypeVar, cast

import anyio
import pytest

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.engine import EngineContext, EpisodeEngine, EpisodeSettings
from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import (
    Accounts,
    Call,
    Completion,
    Message,
    ModelSettings,
    Prices,
    TextPart,
    ToolCall,
    ToolReply,
    make_model,
)
from agentflow.sandbox import Backend, Sandbox, tool
from agentflow.team import ToolAgent
from agentflow.testing import VirtualTimeLoop, fake_endpoint
from agentflow.trace import (
    Action,
    Ending,
    Episode,
    Failure,
    MemoryBlobStore,
    Task,
    Tokens,
    TokenTree,
    Usage,
    calls_of,
)
from tests.agentflow.team._solving import TASK, Book, Diary
from tests.agentflow.telemetry._collected import attributes, collected

T = TypeVar("T")

Said = str | list[ToolCall]


def write(text: str, number: int = 1, **more: object) -> ToolCall:
    return ToolCall(f"c{number}", "diary_write", {"text": text, **more})


class Agent:
    """A model that says one thing after the other: words, or calls."""

    name = "agent"
    vision = False

    def __init__(self, *said: Said | Exception) -> None:
        self.calls: list[Call[object]] = []
        self.prompt_tokens = 100
        """Tokens of every prompt, as reported."""
        self._said = list(said)

    async def complete(self, call: Call[T]) -> Completion[T]:
        self.calls.append(cast("Call[object]", call))
        said = self._said.pop(0)
        if isinstance(said, Exception):
            raise said
        text, calls = (said, ()) if isinstance(said, str) else ("", tuple(said))
        return Completion(
            value=cast("T", text),
            text=text,
            usage=Usage(1, self.prompt_tokens, 10),
            model="agent",
            calls=calls,
        )


async def solved(
    model: Agent,
    *,
    backends: Sequence[Backend] | None = None,
    book: Book | None = None,
    task: Task = TASK,
    tools: str = "*",
    prices: Prices | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **settings: object,
) -> Episode:
    async with Sandbox(backends=[*(backends or [Diary()])]) as sandbox:
        engine = EpisodeEngine(
            agent=ToolAgent(model, MemoryBlobStore()),
            tools=await sandbox.tools(tools) if tools else [],
            settings=EpisodeSettings.model_validate(settings),
            context=EngineContext(prices={} if prices is None else {"agent": prices}, clock=clock),
        )
        return await engine.solve(task, sandbox, (book or Book()).open())


def replies(call: Call[object]) -> list[tuple[str, str, bool]]:
    """The replies that the last message holds."""
    found = [part for part in call.messages[-1].parts if isinstance(part, ToolReply)]
    return [
        (reply.call, "".join(part.text for part in reply.parts if isinstance(part, TextPart)), reply.failed)
        for reply in found
    ]


@pytest.mark.promise("team:single:calls")
async def test_all_calls_of_a_turn_are_made_in_order_and_answered() -> None:
    model = Agent([write("a", 1), write("b", 2)], [write("c", 3)], " 1871 \n")
    episode = await solved(model, instructions="Be quick.")
    assert (episode.agent, episode.ending, episode.answer) == ("single", Ending.ANSWERED, "1871")
    assert replies(model.calls[1]) == [("c1", "a (blue)", False), ("c2", "a (blue); b (blue)", False)]
    assert replies(model.calls[2]) == [("c3", "a (blue); b (blue); c (blue)", False)]
    assert [turn.number for turn in episode.turns] == [1, 2, 3]
    assert episode.calls == {"agent": 3}
    system, question = model.calls[0].messages
    assert "Be quick." in str(system)
    assert TASK.question in str(question)
    assert [spec.name for spec in model.calls[0].tools] == ["diary_write", "diary_look"]
    assert "It forgets nothing." in model.calls[0].tools[0].description


@pytest.mark.promise("tracing:conventions")
async def test_the_span_of_a_call_has_the_id_that_the_model_gave_it() -> None:
    with collected() as found:
        await solved(Agent([write("a", 1), write("b", 2)], [write("c", 3)], "1871"))
    tools = found.of("execute_tool")
    assert [attributes(span)["gen_ai.tool.call.id"] for span in tools] == ["c1", "c2", "c3"]


@pytest.mark.promise("team:single:answer")
async def test_in_its_last_turn_the_agent_must_answer_without_tools() -> None:
    model = Agent([write("a")], [write("b")], "1871")
    episode = await solved(model, max_turns=3)
    assert (episode.ending, episode.answer) == (Ending.TURNS, "1871")
    assert [call.may_call for call in model.calls] == [True, True, False]
    assert "cannot make any more calls" in str(model.calls[2].messages[-1])
    assert model.calls[2].tools == model.calls[0].tools


@pytest.mark.promise("team:single:answer")
@pytest.mark.parametrize(("tools", "turns"), [("", 5), ("*", 1), ("*", 0)])
async def test_without_tools_or_turns_the_agent_answers_immediately(tools: str, turns: int) -> None:
    model = Agent("1871")
    episode = await solved(model, tools=tools, max_turns=turns)
    assert (episode.ending, episode.answer) == (Ending.ANSWERED, "1871")
    assert [call.may_call for call in model.calls] == [False]


@pytest.mark.promise("team:single:answer")
async def test_an_agent_that_fails_or_returns_nothing_has_not_answered() -> None:
    silent = await solved(Agent([write("a")], [write("b")]), max_turns=2)
    assert (silent.ending, silent.solution) == (Ending.FAILED, None)
    assert silent.failure is not None
    assert silent.failure.message == "the agent gave an empty answer"
    failure = ModelFailure(ModelFailureKind.TOO_LONG, "it does not fit")
    episode = await solved(Agent([write("a")], failure, "1871"))
    assert (episode.ending, episode.answer) == (Ending.FAILED, "1871")
    broken = await solved(Agent([write("a")], failure, failure))
    assert broken.failure == Failure("too_long", "it does not fit")


@pytest.mark.promise("team:single:answer")
async def test_a_model_that_has_one_turn_is_shown_no_tools() -> None:
    model = Agent("1871")
    episode = await solved(model, max_turns=1)
    assert (episode.ending, episode.answer) == (Ending.ANSWERED, "1871")
    assert [call.tools for call in model.calls] == [()]


@pytest.mark.promise("team:single:failures")
async def test_calls_that_cannot_be_made_are_answered_as_failed() -> None:
    calls = [
        ToolCall("c1", "nowhere", {}),
        ToolCall("c2", "diary_write", None, "{text: a"),
        ToolCall("c3", "diary_write", {"txt": "a"}),
        write("forbidden", 4),
    ]
    diary = Diary()
    model = Agent(calls, "1871")
    episode = await solved(model, backends=[diary])
    assert diary.calls == ["forbidden"]
    told = replies(model.calls[1])
    assert [failed for _, _, failed in told] == [True] * 4
    assert "there is no tool 'nowhere'; available tools: diary_write, diary_look" in told[0][1]
    assert "the arguments are not a JSON object: {text: a" in told[1][1]
    assert "argument 'text' is missing" in told[2][1]
    assert "that may not be written" in told[3][1]
    assert episode.turns[2].action == Action("diary_write", {"txt": "a"})
    assert episode.answer == "1871"


@pytest.mark.promise("team:solve:fixed")
async def test_arguments_fixed_by_a_task_override_the_agents_and_are_hidden() -> None:
    task = Task(index=0, id="t", question="Which?", kwargs={"ink": "red"})
    model = Agent([write("a", ink="green")], "1871")
    episode = await solved(model, task=task)
    assert episode.turns[0].result == "a (red)"
    assert "ink" not in str(model.calls[0].tools[0].schema)


class Meeting(Backend):
    """Harmless calls that wait for each other, and one that must be alone."""

    name = "meeting"
    description = "Waits."

    def __init__(self) -> None:
        self.there = 0
        self.most = 0

    @tool(read_only=True)
    async def meet(self) -> str:
        """Meet two others."""
        return await self._stay(1)

    @tool()
    async def alone(self) -> str:
        """Be alone."""
        return await self._stay(1)

    async def _stay(self, seconds: float) -> str:
        self.there += 1
        there = self.there
        await anyio.sleep(seconds)
        self.most = max(self.most, self.there)
        self.there -= 1
        return str(there)


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["virtual-time"]
)
class TestTogether:
    """In virtual time: waiting takes none."""

    @pytest.mark.promise("team:single:calls")
    async def test_repeatable_calls_run_concurrently_and_others_in_order(self) -> None:
        meeting = Meeting()
        calls = [ToolCall(f"c{n}", "meeting_meet", {}) for n in range(3)]
        alone = [ToolCall(f"d{n}", "meeting_alone", {}) for n in range(2)]
        model = Agent([*calls, *alone], "1871")
        episode = await solved(model, backends=[meeting])
        assert meeting.most == 3
        assert [text for _, text, _ in replies(model.calls[1])] == ["1", "2", "3", "1", "1"]
        assert [round(turn.seconds) for turn in episode.turns] == [1, 1, 1, 2, 3]

    @pytest.mark.promise("team:solve:time")
    @pytest.mark.promise("team:single:resume")
    async def test_when_time_is_up_calls_not_made_are_failed_and_the_agent_answers(self) -> None:
        book = Book()
        calls = [ToolCall(f"d{n}", "meeting_alone", {}) for n in range(5)]
        model = Agent(calls, "1871")
        episode = await solved(model, backends=[Meeting()], book=book, max_seconds=5, answer_seconds=2.5)
        assert (episode.ending, episode.answer) == (Ending.TIME, "1871")
        assert [turn.failure is None for turn in episode.turns] == [True, True, False, False, False]
        assert "not run: the episode ended first" in replies(model.calls[1])[-1][1]
        assert (
            await solved(Agent(), backends=[Meeting()], book=book, max_seconds=5, answer_seconds=2.5)
            == episode
        )


@pytest.mark.promise("team:single:resume")
@pytest.mark.parametrize("cut", range(6))
async def test_an_agent_interrupted_after_any_entry_resumes_there(cut: int) -> None:
    said: list[Said] = [[write("a", 1), write("b", 2)], [write("c", 3)], "1871"]
    whole = await solved(Agent(*said), book=(full := Book()))
    assert list(full.entries) == ["1/agent", "1/act/0", "1/act/1", "2/agent", "2/act/0", "3/agent"]
    book = Book()
    book.entries = dict(list(full.entries.items())[:cut])
    asked = sum("agent" in key for key in book.entries)
    again = await solved(Agent(*said[asked:]), book=book)
    assert [(turn.action, turn.result) for turn in again.turns] == [
        (turn.action, turn.result) for turn in whole.turns
    ]
    assert (again.answer, again.ending) == (whole.answer, whole.ending)
    assert await solved(Agent(), book=book) == again


@pytest.mark.promise("team:solve:limits")
async def test_token_and_cost_limits_end_the_agents_turns_but_not_the_answer() -> None:
    model = Agent([write("a")], [write("b")], "1871")
    episode = await solved(model, max_tokens=220)
    assert (episode.ending, episode.answer) == (Ending.TOKENS, "1871")
    model = Agent([write("a")], [write("b")], "1871")
    episode = await solved(model, max_cost=2, prices=Prices(input=10_000, output=0))
    assert (episode.ending, episode.answer) == (Ending.MONEY, "1871")


@pytest.mark.promise("team:single:conversation")
async def test_the_results_of_one_answer_are_windows_that_fit_into_half_of_the_budget_together() -> None:
    calls = [ToolCall(f"c{n}", "diary_look", {"what": "a line of text. " * 100}) for n in range(4)]
    model = Agent(calls, "1871")
    model.prompt_tokens = 500
    episode = await solved(model, context_tokens=1_000)
    assert sum(len(turn.result) for turn in episode.turns) < 2_500
    assert all(re.search(r"… [\d,]+ characters …", turn.result) for turn in episode.turns)
    episode = await solved(Agent(calls, "1871"))
    assert all(len(turn.result) > 1_600 for turn in episode.turns)


@pytest.mark.promise("team:single:lost-turn")
async def test_an_unusable_answer_costs_a_turn_and_the_agent_sees_the_reason() -> None:
    tokens = Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,), finish="length")
    cut = ModelFailure(
        ModelFailureKind.TOO_LONG,
        "cut at its token limit",
        answers=1,
        answer_tokens=(tokens,),
        answer_text="I th",
    )
    empty = ModelFailure(ModelFailureKind.GARBAGE, "the answer is empty", answers=1)
    book = Book()
    model = Agent([write("a")], cut, empty, "1871")
    episode = await solved(model, book=book)
    assert (episode.ending, episode.answer) == (Ending.ANSWERED, "1871")
    assert [turn.number for turn in episode.turns] == [1, 2, 3]
    assert episode.turns[1].failure == Failure("too_long", "cut at its token limit")
    *_, cut_answer, reason, empty_answer, other_reason = model.calls[-1].messages
    assert cut_answer == Message("assistant", (TextPart("I th"),), tokens.mark)
    assert "The answer can't be used: cut at its token limit" in str(reason)
    assert "(empty)" in str(empty_answer)
    assert "The answer can't be used: the answer is empty" in str(other_reason)
    assert episode.exchanges[1].tokens == tokens
    assert await solved(Agent(), book=book) == episode
    lost = await solved(Agent(cut, cut, "1871"), max_turns=3)
    assert (lost.ending, lost.answer, len(lost.turns)) == (Ending.TURNS, "1871", 2)


@pytest.mark.promise("models:exact_tools")
async def test_its_prompts_only_grow_by_tokens() -> None:
    async with fake_endpoint() as url:
        settings = ModelSettings(name="fake", base_url=url, tokens="exact", temperature=1.0)
        async with make_model(settings, Accounts(), environment={}) as model:
            episode = await solved(cast("Agent", model))
    calls = calls_of(episode, roles=("agent",))
    assert len(calls) == 4
    tree = TokenTree(calls)
    reasons = [fork.reason.value for fork in tree.forks()]
    assert reasons == ["opening", "append", "append", "append"]
    [row] = tree.rows().values()
    assert sum(len(piece.ids) for piece in row if piece.kind == "trained") == sum(
        len(call.tokens.sampled) for call in calls
    )
