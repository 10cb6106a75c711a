"""Questions and answers in the form of the documented examples: kept if they are right, rejected if not."""

import json
import re
from pathlib import Path

import pytest

from agentflow.facts import (
    EvidenceAnswer,
    EvidenceRequest,
    ExtractedFact,
    ExtractedSet,
    FactSpan,
    FactStore,
    ValueKind,
    Wording,
    WordingRequest,
    enumerate_skeletons,
    new_set,
)
from agentflow.models import TextPart
from agentflow.synthesis import SynthesisConfig, write_questions
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_checks import QuestionChecker
from agentflow.synthesis._question_draft import Check
from agentflow.synthesis._questions import check_settings, draft_of
from agentflow.synthesis._tree_facts import extract_facts
from agentflow.synthesis._wording_requests import wording_request
from agentflow.team._question_messages import wording_messages
from agentflow.testing import ScriptedRoles
from agentflow.trajectory import Reply, Seed, Tree
from tests.agentflow.synthesis._grown import page, tree

FULL = json.loads((Path(__file__).parent / "documented/full.json").read_text(encoding="utf-8"))
CONFIG = SynthesisConfig(qa_examples=FULL["qa_examples"], model_name="gpt-4.1")
SEED = Seed(index=0, id="seed_001", content="Research the top 10 countries by GDP in 2024")
TOP = "The top three countries by GDP in 2024 are the United States, China and Germany."
GDP = {"United States": "29.17", "China": "18.53", "Germany": "4.59", "India": "3.91"}
GROWTH = {"India": "6.8", "China": "5.0", "United States": "2.8", "Germany": "-0.2"}


def table(title: str, header: str, rows: dict[str, str]) -> str:
    return "\n".join([f"{title}:", "", header, *(f"{name} | {value}" for name, value in rows.items()), ""])


def world() -> Tree:
    """A tree that found the ranking, the GDP of countries, and their growth."""
    gdp = table("GDP of countries in 2024", "Country | GDP (trillion US dollars)", GDP)
    growth = table("GDP growth rates of countries in 2024", "Country | GDP growth rate (%)", GROWTH)
    return tree({(0,): TOP, (0, 0): gdp, (0, 0, 0): growth}, SEED)


STATEMENTS = [
    ExtractedFact(name, relation, value, ValueKind.NUMBER, f"{name} | {value}", unit=unit)
    for relation, unit, rows in (
        ("gdp", "trillion US dollars", GDP),
        ("gdp growth rate", "%", GROWTH),
    )
    for name, value in rows.items()
]
RANKING = ExtractedSet("the top three countries by GDP in 2024", ("United States", "China", "Germany"), TOP)

TOP_THREE = FULL["qa_examples"][0]["question"]
FASTEST = "Among the top three countries by GDP in 2024, which had the fastest GDP growth rate, and what was that rate?"
OF_FOUR = "Among the four countries listed by GDP in 2024, which had the fastest GDP growth rate, and what was that rate?"
WORDS = {
    ("top countries", "(2) the list of (1), each with its gdp"): TOP_THREE,
    ("top countries", "greatest gdp growth rate", "each with its gdp growth rate"): FASTEST,
    ("“GDP of countries", "greatest gdp growth rate", "each with its gdp growth rate"): OF_FOUR,
}
RIGHT = {
    TOP_THREE: FULL["qa_examples"][0]["answer"],
    FASTEST: "China at 5.0 %",
    OF_FOUR: "Based on 2024 data, India had the fastest GDP growth rate at 6.8%...",
}


def words_for(program: tuple[str, ...]) -> str | None:
    text = "; ".join(program)
    fitting = (
        words
        for parts, words in WORDS.items()
        if all(part in text for part in parts) and text.endswith(parts[-1])
    )
    return next(fitting, None)


class Economist(ScriptedRoles):
    """Words questions as the examples do, and answers in prose."""

    def __init__(self, said: dict[str, str]) -> None:
        super().__init__(STATEMENTS, [RANKING])
        self._said = said

    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """Return the documented words, if there are some."""
        words = words_for(request.program)
        if words is None:
            return await super().word(request)
        self.asked.append(request)
        self.meanings[words] = request.steps
        return Reply(Wording(words))

    def store_of(self, text: str) -> FactStore:
        """Return the statements of a text, with the tables that are shown whole."""
        store = super().store_of(text)
        title = "GDP of countries in 2024"
        sets = [new_set(f"countries in the table “{title}”", tuple(GDP), (FactSpan("shown", 0, 0),))]
        return FactStore(store.facts, [*store.sets.values(), *(sets if title in text else [])])

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Answer in prose what the passages determine."""
        reply = await super().read(request)
        if reply.value is None or not reply.value.answers or request.question not in self._said:
            return reply
        return Reply(EvidenceAnswer((), "It follows from the tables.", (self._said[request.question],)))


@pytest.mark.promise("synthesis:questions:examples")
async def test_questions_in_the_form_of_the_examples_are_found_worded_by_them_and_kept() -> None:
    economist = Economist(RIGHT)
    result = await write_questions(world(), CONFIG, economist, page())
    answers = {pair.answer for pair in result.pairs if "each with its" in pair.program[-1]}
    assert answers
    for answer in answers:
        records = re.findall(r"([A-Z][A-Za-z ]+) \((\S+?)(?: trillion US dollars|%)\)", answer)
        assert records
        for name, value in records:
            rows = GROWTH if "%" in answer else GDP
            assert float(rows[name]) == float(value)
    (request, *_) = [asked for asked in economist.asked if isinstance(asked, WordingRequest)]
    shown = [
        part.text
        for message in wording_messages(request)
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    assert f"Question: {TOP_THREE}\nAnswer: {RIGHT[TOP_THREE]}" in shown[0]


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
        (OF_FOUR, "Based on 2024 data, India had the fastest GDP growth rate at 8.6%."),
        (OF_FOUR, "Based on 2024 data, China had the fastest GDP growth rate at 5.0%."),
    ],
)
async def test_the_documented_answers_pass_the_checks_and_wrong_values_do_not(
    question: str, wrong: str
) -> None:
    for said, accepted in ((RIGHT[question], True), (wrong, False)):
        economist = Economist({question: said})
        calls = JournalledCalls(page())
        known, _ = await extract_facts(world(), "", economist, calls)
        for skeleton in enumerate_skeletons(known.store, known.seed_names, records=True):
            request = wording_request(skeleton, known, world(), CONFIG, [])
            if words_for(request.program) == question:
                break
        else:
            pytest.fail("the question is not found")
        economist.meanings[question] = request.steps
        checker = QuestionChecker(known, check_settings(CONFIG), economist, calls)
        checked = await checker.check(draft_of(skeleton, question), "0")
        assert checked.accepted is accepted, (said, checked.findings)
        assert accepted or checked.findings[0].check is Check.EVIDENCE
