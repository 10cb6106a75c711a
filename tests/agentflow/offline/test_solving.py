"""The four offline roles of a team that solves tasks."""

import msgspec
import pytest

from agentflow.offline._solving import (
    analyse,
    answer_from,
    command,
    decide,
    decided_step,
    next_step,
    solve,
    summarise,
)
from agentflow.trace import (
    Action,
    AnalysisRequest,
    Assessment,
    CommandRequest,
    DecisionRequest,
    Memory,
    NextStep,
    NextStepRequest,
    QueryAnalysis,
    Solution,
    SolutionRequest,
    SummaryRequest,
    Turn,
    VerificationRequest,
)
from tests.agentflow.offline._walks import BASH, CODE, SEARCH, search

NOTHING = QueryAnalysis("", "", "", "")
TOOLS = (BASH, SEARCH, CODE)


def wanted(question: str, memory: Memory) -> NextStepRequest:
    return NextStepRequest(question=question, tools=TOOLS, analysis=NOTHING, memory=memory, turns_left=3)


def solved(question: str, turns: int = 8) -> tuple[Solution, Memory]:
    """Work on a question as a team does."""
    memory = Memory()
    for number in range(1, turns + 1):
        step = next_step(wanted(question, memory))
        arguments = command(CommandRequest(question=question, step=step, tool=SEARCH)).arguments
        turn = Turn(
            number=number,
            step=step,
            action=Action(SEARCH.name, arguments),
            result=search(arguments["query"]),
        )
        memory = Memory(turns=(*memory.turns, turn))
        asked = VerificationRequest(
            question=question, tools=TOOLS, analysis=NOTHING, memory=memory, turns_left=2
        )
        if decide(asked).stop:
            break
    return solve(SolutionRequest(question=question, analysis=NOTHING, memory=memory)), memory


@pytest.mark.promise("offline:solves")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who was the captain of the Grey Petrel?", "Ilsa Venn"),
        ("What is the main town of Quillan?", "Greywater"),
        ("Answer shortly. What is the main town of Quillan?\n\nGive a few words.", "Greywater"),
        ("Where was the captain of the Grey Petrel born?", "Tollen Quay"),
    ],
)
def test_facts_of_the_corpus_are_found_and_answered(question: str, answer: str) -> None:
    solution, memory = solved(question)
    assert len(memory.turns) <= 8
    assert solution.answer == answer
    assert solution.working


@pytest.mark.promise("offline:solves")
def test_facts_outside_the_corpus_are_not_made_up() -> None:
    solution, memory = solved("What is the melting point of tungsten in kelvin?", turns=3)
    assert solution == Solution("What was seen does not answer the question.", "")
    assert len({turn.action.canonical for turn in memory.turns if turn.action}) == 3


@pytest.mark.promise("offline:solves")
@pytest.mark.parametrize(
    ("question", "result", "answer"),
    [
        ("How many lamps does the Amber Heron carry?", "1081", "1081"),
        ("How many lamps does the Amber Heron carry?", "years between: 35", ""),
        ("Who was the captain of the Amber Heron?", "1081", ""),
    ],
)
def test_a_bare_number_from_the_last_call_answers_a_how_many_question(
    question: str, result: str, answer: str
) -> None:
    step = NextStep("", "", "", CODE.name)
    turn = Turn(number=1, step=step, action=Action(CODE.name, {"code": "23 * 47"}), result=result)
    memory = Memory(turns=(turn,))
    asked = VerificationRequest(question=question, tools=TOOLS, analysis=NOTHING, memory=memory, turns_left=2)
    assert decide(asked).stop is bool(answer)
    assert solve(SolutionRequest(question=question, analysis=NOTHING, memory=memory)).answer == answer


@pytest.mark.promise("offline:solves")
def test_the_same_call_is_never_proposed_twice() -> None:
    _, memory = solved("Who painted the moon?", turns=12)
    calls = [turn.action.canonical for turn in memory.turns if turn.action]
    assert len(set(calls)) == len(calls)


@pytest.mark.promise("offline:solves")
@pytest.mark.parametrize("numbers", ["1 3 4 6", "4, 9, 10, 13", "3 3 8 8", "5 5 5 1"])
def test_four_numbers_are_combined_to_24(numbers: str) -> None:
    found = answer_from(f"Use {numbers} and + - * / to obtain 24. Answer as in (1 + 2 + 3) * 4.", ())
    assert found is not None
    assert found.sure
    for number in numbers.replace(",", "").split():
        assert number in found.answer


@pytest.mark.promise("offline:solves")
def test_numbers_that_can_not_make_24_have_no_answer() -> None:
    assert answer_from("Use 1 1 1 1 to obtain 24.", ()) is None


@pytest.mark.promise("offline:solves")
def test_the_observed_option_is_chosen() -> None:
    text = "Edda Quist was the keeper of the House of Charts."
    question = "Who was the keeper of the House of Charts?\nA. Bram Oster\nB. Edda Quist\nC. Ilsa Venn"
    found = answer_from(question, (text,))
    assert found is not None
    assert found.answer == "B"


@pytest.mark.promise("offline:solves")
def test_the_analysis_lists_the_names_to_look_up() -> None:
    analysis = analyse(AnalysisRequest(question="Who built the Grey Petrel?", tools=TOOLS))
    assert "Grey Petrel" in analysis.additional_considerations
    assert analysis.relevant_tools.split(", ")[0] == "rag_search"


@pytest.mark.promise("offline:solves")
def test_an_executor_builds_arguments_from_text_if_the_planner_gave_none() -> None:
    step = NextStep("", "", "Find out more about the Grey Petrel.", "rag_search")
    made = command(CommandRequest(question="?", step=step, tool=SEARCH))
    assert made.arguments == {"query": "Grey Petrel"}


@pytest.mark.promise("offline:solves")
@pytest.mark.parametrize("context", ['{"query": "Grey Petrel"}', "query: Grey Petrel"])
def test_an_executor_uses_the_planners_arguments(context: str) -> None:
    step = NextStep("", context, "", SEARCH.name)
    made = command(CommandRequest(question="?", step=step, tool=SEARCH))
    assert made.arguments == {"query": "Grey Petrel"}


def test_a_line_with_a_colon_but_no_argument_name_is_text() -> None:
    step = NextStep("", "Ship: Grey Petrel", "", SEARCH.name)
    made = command(CommandRequest(question="?", step=step, tool=SEARCH))
    assert "Grey Petrel" in made.arguments["query"] and set(made.arguments) == {"query"}


@pytest.mark.promise("offline:solves")
def test_a_combined_answer_equals_the_two_separate_ones() -> None:
    request = wanted("Who was the captain of the Grey Petrel?", Memory())
    both = decided_step(DecisionRequest(next=request))
    assert both.decision.assessment is Assessment.INCOMPLETE
    assert both.next == next_step(request)


@pytest.mark.promise("offline:solves")
def test_a_summary_keeps_the_text_of_the_turns() -> None:
    turn = Turn(number=1, step=NextStep("", "", "", ""), action=None, result="Ilsa Venn was the captain.")
    summary = summarise(SummaryRequest(question="?", summary="Before.", turns=(turn,)))
    assert summary.summary == "Before.\nIlsa Venn was the captain."
    assert msgspec.json.decode(msgspec.json.encode(summary)) == {"summary": summary.summary}
