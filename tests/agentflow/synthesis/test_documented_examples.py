"""Questions and answers in the form of the documented examples: kept if they are right, rejected if not."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentflow.questions import (
    Draft,
    DraftKind,
    DraftStep,
    GateCheck,
    ReadingAnswer,
    ReadingRequest,
    Readings,
    ShownDocument,
    quoted,
)
from agentflow.synthesis import SynthesisConfig, write_questions
from agentflow.testing import ScriptedRoles
from agentflow.trace import Reply, Seed, Tree
from agentflow.values import ValueKind
from tests.agentflow.synthesis._grown import page, tree

FULL = json.loads((Path(__file__).parent / "documented/full.json").read_text(encoding="utf-8"))
CONFIG = SynthesisConfig(qa_examples=FULL["qa_examples"], model_name="gpt-4.1", repair=False)
SEED = Seed(index=0, id="seed_001", content="Research the top 10 countries by GDP in 2024")
TOP = "The top three countries by GDP in 2024 are the United States, China and Germany."
GDP = {"United States": "29.17", "China": "18.53", "Germany": "4.59", "India": "3.91"}
GROWTH = {"India": "6.8", "China": "5.0", "United States": "2.8", "Germany": "-0.2"}
TOP_THREE = FULL["qa_examples"][0]["question"]
FASTEST = "Which of the United States, China and Germany had the fastest GDP growth rate in 2024, and what was that rate?"
RIGHT = {
    TOP_THREE: "United States ($29.17 trillion), China ($18.53 trillion), Germany ($4.59 trillion)",
    FASTEST: "China at 5.0 %",
}


def table(title: str, header: str, rows: dict[str, str]) -> str:
    return "\n".join([f"{title}:", "", header, *(f"{name} | {value}" for name, value in rows.items()), ""])


def world() -> Tree:
    """Return a tree that found the ranking, the GDP of countries, and their growth."""
    gdp = table("GDP of countries in 2024", "Country | GDP (trillion US dollars)", GDP)
    growth = table("GDP growth rates of countries in 2024", "Country | GDP growth rate (%)", GROWTH)
    return tree({(0,): TOP, (0, 0): gdp, (0, 0, 0): growth}, SEED)


def drafts(documents: Sequence[ShownDocument]) -> list[Draft]:
    """Return drafts that ask for things with their values, as the examples do."""
    passages = [passage for document in documents for passage in document.passages]

    def step(statement: str, quote: str, value: str = "") -> DraftStep:
        number = next(each.number for each in passages if quoted(each.text, quote))
        return DraftStep(statement=statement, passage=number, quote=quote, value=value)

    ranking = step(TOP, TOP)
    amounts = [step(f"{name} | {GDP[name]}", f"{name} | {GDP[name]}") for name in list(GDP)[:3]]
    rates = [
        step(f"{name} | {GROWTH[name]}", f"{name} | {GROWTH[name]}", GROWTH[name]) for name in list(GDP)[:3]
    ]
    return [
        Draft(
            kind=kind,
            asker="An economist who compares countries.",
            question=question,
            answer=RIGHT[question],
            answer_type=ValueKind.TEXT,
            documents=(),
            steps=(ranking, *steps),
        )
        for kind, question, steps in (
            (DraftKind.REFERENCE, TOP_THREE, amounts),
            (DraftKind.COMPARISON, FASTEST, rates),
        )
    ]


class Economist(ScriptedRoles):
    """Answers in prose what the documents determine."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(drafts)
        self._answers = answers

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer each question with the given words."""
        readings = tuple(
            ReadingAnswer(
                number=each.number,
                documents=(),
                derivation="",
                answers=(self._answers[each.question],),
                naturalness=4,
            )
            for each in request.questions
        )
        return self._reply(request, Readings(readings))


@pytest.mark.promise("synthesis:questions:examples")
async def test_questions_in_the_form_of_the_examples_are_kept_only_if_examples_ask_so() -> None:
    said = {TOP_THREE: FULL["qa_examples"][0]["answer"], FASTEST: RIGHT[FASTEST]}
    result = await write_questions(world(), CONFIG, Economist(said), page())
    assert {pair.question: pair.answer for pair in result.pairs} == RIGHT
    plain = SynthesisConfig(model_name="gpt-4.1", repair=False)
    refused = await write_questions(world(), plain, Economist(said), page())
    assert refused.pairs == ()
    assert {finding.check for draft in refused.rejected for finding in draft.findings} == {GateCheck.FORM}


@pytest.mark.promise("synthesis:questions:examples")
@pytest.mark.parametrize(
    ("question", "wrong"),
    [
        (TOP_THREE, RIGHT[TOP_THREE].replace("18.53", "17.53")),
        (TOP_THREE, RIGHT[TOP_THREE].replace("Germany", "Japan")),
        (TOP_THREE, "The top three countries by GDP in 2024 are the United States and China."),
        (FASTEST, "China at 5.1 %"),
        (FASTEST, "India at 6.8 %"),
        (FASTEST, "India at 5.0 %"),
    ],
)
async def test_a_reader_with_a_wrong_value_rejects_a_question(question: str, wrong: str) -> None:
    result = await write_questions(world(), CONFIG, Economist({**RIGHT, question: wrong}), page())
    assert question not in {pair.question for pair in result.pairs}
    assert [draft.findings[0].check for draft in result.rejected] == [GateCheck.EVIDENCE]
