"""Difficulty by attempts: never solved, kept, always solved."""

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from pydantic import ValidationError

from agentflow.errors import ModelFailureKind
from agentflow.journal import Page
from agentflow.synthesis import SynthesisConfig, write_questions
from agentflow.synthesis._attempts import Triage, attempt_question, chat_of
from agentflow.synthesis._seed_result import SeedResult
from agentflow.trace import (
    Action,
    Blob,
    Ending,
    Episode,
    Exchange,
    Failure,
    NextStep,
    Solution,
    Task,
    Turn,
    Usage,
)
from agentflow.values import infer_value
from tests.agentflow.synthesis._grown import QUESTIONS, chain, page, roles

CONFIG = SynthesisConfig.model_validate({"difficulty": {"attempts": 4}})
ANSWERS = {question: f"{answer} {unit}".strip() for _, question, answer, _, unit, _ in QUESTIONS}


class Solver:
    """Solves the first attempts at each question, as many as it is told to."""

    def __init__(self, answers: dict[str, str], right: int, failure: Failure | None = None) -> None:
        self.questions: list[str] = []
        self._answers = answers
        self._right = right
        self._failure = failure

    async def attempt(self, question: str, page: Page) -> Episode:
        """Answer after one search."""
        self.questions.append(question)
        right = self.questions.count(question) <= self._right
        turn = Turn(
            number=1,
            step=NextStep(justification="look", context="", sub_goal="", tool_name="rag_search"),
            action=Action("rag_search", {"query": "Brenn"}),
            result=f"Brenn is a port. {self._answers.get(question, '')}",
        )
        answer = self._answers.get(question, "") if right else "somewhere else"
        return Episode(
            task=Task(index=0, id="attempt", question=question),
            agent="single",
            ending=Ending.ANSWERED if self._failure is None else Ending.FAILED,
            turns=(turn,),
            solution=Solution("", answer) if self._failure is None else None,
            failure=self._failure,
            exchanges=(Exchange(key="1", role="agent", usage=Usage(1, 10, 5), seconds=0.0),),
            seconds=0.0,
        )


async def solved(right: int, **settings: Any) -> SeedResult:  # noqa: ANN401 - settings
    """Return the result with a solver that is right so often."""
    config = CONFIG.model_copy(update=settings)
    return await write_questions(chain(), config, roles(), page(), agent=Solver(ANSWERS, right))


@pytest.mark.promise("synthesis:difficulty")
async def test_a_question_that_no_attempt_solves_goes_to_triage() -> None:
    result = await solved(0)
    assert result.pairs == ()
    assert result.triaged
    assert {one.reason for one in result.triaged} == {Triage.NEVER_SOLVED}


@pytest.mark.promise("synthesis:difficulty")
async def test_a_question_that_some_attempts_solve_is_kept_with_its_pass_rate() -> None:
    result = await solved(2)
    assert result.pairs
    for pair in result.pairs:
        assert pair.difficulty is not None
        assert (pair.difficulty.attempts, pair.difficulty.correct, pair.difficulty.rate) == (4, 2, 0.5)
        low, high = pair.difficulty.interval
        assert 0.1 < low < 0.5 < high < 0.9
        assert pair.difficulty.turns == 1
        assert pair.difficulty.hit == 1
    assert result.usage["agent"].calls == 4 * (len(result.pairs) + len(result.triaged))
    [chat, *_] = [one for own in result.attempts for one in own.attempts if one.correct]
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[-1]["content"] == chat.answer
    assert not any(one.messages for own in result.attempts for one in own.attempts if not one.correct)


@pytest.mark.promise("synthesis:difficulty")
async def test_a_question_that_every_attempt_solves_goes_to_triage() -> None:
    result = await solved(4)
    assert result.pairs == ()
    assert {one.reason for one in result.triaged} == {Triage.ALWAYS_SOLVED}


@pytest.mark.promise("synthesis:difficulty")
async def test_an_outage_says_nothing_about_a_question() -> None:
    down = Failure(ModelFailureKind.UNAVAILABLE, "down")
    result = await write_questions(chain(), CONFIG, roles(), page(), agent=Solver({}, 0, down))
    assert result.pairs
    assert result.triaged == ()
    assert {pair.difficulty for pair in result.pairs} == {None}


@pytest.mark.promise("synthesis:attempts:masked")
def test_failed_calls_of_an_attempt_are_masked_and_fixed_arguments_left_out() -> None:
    def turn(number: int, **more: Any) -> Turn:  # noqa: ANN401 - fields
        step = NextStep(f"Step {number}.", "", "", "rag_search")
        action = Action("rag_search", {"query": "Brenn", "top_k": 1})
        return structs.replace(Turn(number=number, step=step, action=action, result="A port."), **more)

    episode = Episode(
        task=Task(index=0, id="attempt", question="Where?", kwargs={"top_k": 1, "query": "Vell", "other": 2}),
        agent="single",
        ending=Ending.ANSWERED,
        turns=(
            turn(1, failure=Failure("timeout", "too slow"), result="The call failed: timeout: too slow"),
            turn(2, trouble="exit code 1"),
            turn(3, action=None, failure=Failure("tool_not_found", "there is no tool")),
            turn(4),
            turn(5, result="(empty)", images=(Blob("0" * 64, "image/png"),)),
            turn(6),
        ),
        solution=Solution("", "Brenn"),
    )
    chat = chat_of(episode)
    said = [message for message in chat if message["role"] == "assistant"]
    assert [each["content"] for each in said] == [*(f"Step {n}." for n in (1, 2, 4, 5, 6)), "Brenn"]
    assert [each.get("trainable", True) for each in said] == [False, False, True, True, True, True]
    assert {str(each["tool_calls"][0]["function"]["arguments"]) for each in said[:-1]} == {
        "{'query': 'Brenn'}"
    }
    assert chat[8]["content"] == [{"type": "image", "path": f"images/{'0' * 64}.png"}]
    nothing = structs.replace(episode, turns=(), solution=None)
    assert [message["content"] for message in chat_of(nothing)] == ["Where?", ""]


@pytest.mark.promise("synthesis:difficulty")
@pytest.mark.parametrize("window", [[0.8, 0.2], [0.0, 1.5], [0.1]])
def test_a_wrong_window_is_refused(window: list[float]) -> None:
    with pytest.raises(ValidationError, match="window"):
        SynthesisConfig.model_validate({"difficulty": {"attempts": 4, "window": window}})


@pytest.mark.promise("synthesis:images")
async def test_the_chat_of_an_attempt_names_the_files_of_its_images() -> None:
    solver = Solver({"Where?": "here"}, 1)
    episode = await solver.attempt("Where?", page())
    chart = Blob("c4a7", "image/png")
    turns = (
        replace(episode.turns[0], images=(chart,)),
        replace(episode.turns[0], images=(chart,), result=""),
    )
    chat = chat_of(replace(episode, turns=turns))
    part = {"type": "image", "path": "images/c4a7.png"}
    assert [message["content"] for message in chat if message["role"] == "tool"] == [
        [{"type": "text", "text": "Brenn is a port. here"}, part],
        [part],
    ]


@pytest.mark.promise("synthesis:difficulty")
@pytest.mark.parametrize(
    ("answer", "hit"), [("Brenn and Alba", 2), ("Alba", 2), ("Brenn", 1), ("Brenn and Corve", 0)]
)
async def test_an_answer_is_hit_by_the_call_after_which_all_its_items_have_been_shown(
    answer: str, hit: int
) -> None:
    class Reader:
        async def attempt(self, question: str, page: Page) -> Episode:
            step = NextStep(justification="look", context="", sub_goal="", tool_name="rag_search")
            results = ("Brenn is a port.", "Alba is a port.", "Brenn and Alba are ports.")
            return Episode(
                task=Task(index=0, id="attempt", question=question),
                agent="single",
                ending=Ending.ANSWERED,
                turns=tuple(
                    Turn(
                        number=number, step=step, action=Action("rag_search", {"query": "port"}), result=text
                    )
                    for number, text in enumerate(results, 1)
                ),
                solution=Solution("", answer),
                failure=None,
                exchanges=(),
                seconds=0.0,
            )

    [attempt], _ = await attempt_question(Reader(), "Which are ports?", infer_value(answer), page(), 1)
    assert (attempt.correct, attempt.turns, attempt.hit) == (True, 3, hit)
