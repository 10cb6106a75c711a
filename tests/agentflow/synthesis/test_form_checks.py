"""Checks of the words of a question: cheap, and each with one line about the fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.facts import BoolValue, EntityValue, QuestionKind, Value
from agentflow.synthesis._form_checks import asks, check_form, hides, is_brief, names_all, stands_alone
from agentflow.synthesis._question_draft import Check, QuestionDraft

GOOD = QuestionDraft(
    question="Who founded the school in the birthplace of the first keeper of the lighthouse of Brenn?",
    kind=QuestionKind.BRIDGE,
    program=(),
    answer=EntityValue("Jorun Pike"),
    facts=("fact_1", "fact_2"),
    given=("lighthouse of Brenn",),
    hidden=("Ada Holm", "Vessel Bay"),
)


def found(draft: QuestionDraft, most: int = 85) -> set[Check]:
    """The checks that found a fault."""
    return {finding.check for finding in check_form(draft, most)}


def test_a_good_question_passes_every_check() -> None:
    assert found(GOOD) == set()


def test_each_fault_is_described_in_one_line() -> None:
    bad = replace(GOOD, question="Ada Holm\nand the document")
    reasons = [finding.reason for finding in check_form(bad, 2)]
    assert len(reasons) == 5
    assert not any("\n" in reason for reason in reasons)


@given(st.text(max_size=80), st.lists(st.text(max_size=20), max_size=3))
def test_no_question_however_odd_breaks_the_checks(question: str, names: list[str]) -> None:
    check_form(replace(GOOD, question=question, given=tuple(names), hidden=tuple(names)), 85)


@pytest.mark.promise("synthesis:check:names")
def test_a_question_names_what_it_starts_from_and_nothing_hidden() -> None:
    assert Check.NAMES in found(
        replace(GOOD, question="Who founded the school of the first keeper's birthplace?")
    )
    assert names_all("Who is it?", ["Brenn"]) == "the question has to contain Brenn"
    assert Check.LEAKAGE in found(replace(GOOD, question=f"{GOOD.question[:-1]}, Ada Holm?"))


@pytest.mark.promise("synthesis:check:leakage")
@pytest.mark.parametrize("answer", [BoolValue(True), EntityValue("lighthouse of Brenn")])
def test_a_choice_and_a_yes_are_no_leak(answer: Value) -> None:
    assert Check.LEAKAGE not in found(replace(GOOD, answer=answer, question=f"{GOOD.question} yes"))


@pytest.mark.promise("synthesis:check:leakage")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Did Jorun Pike found the school?", "Jorun Pike"),
        ("Is the 5km route the shortest?", "5 km"),
        ("Was it JORUN  pike?", "jorun pike"),
        ("Are there 1,500 ships?", "1500"),
        ("东京在哪个国家？", "东京"),
        ("Is there no way?", "no"),
        ("Is the Ｇｕｌｌ fast?", "Gull"),
    ],
)
def test_a_question_that_holds_its_answer_is_found(question: str, answer: str) -> None:
    assert hides(question, [answer])
    assert Check.LEAKAGE in found(replace(GOOD, question=question, answer=EntityValue(answer)))


@pytest.mark.promise("synthesis:check:leakage")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many of the 50 ships returned?", "5"),
        ("Did the keeper leave a note?", "no"),
        ("Did it happen yesterday?", "yes"),
        ("Which of the 1,500 ships?", "500"),
        ("How much is 2.5 times 2?", "5"),
        ("Who was the keeper of Brennholt?", "Brenn"),
        ("Which route is 15 km long?", "5 km"),
        ("京都在哪里？", "东京"),
    ],
)
def test_a_part_of_a_word_is_no_leak(question: str, answer: str) -> None:
    assert not hides(question, [answer])
    assert Check.LEAKAGE not in found(replace(GOOD, question=question, answer=EntityValue(answer)))


@pytest.mark.promise("synthesis:check:verbosity")
def test_a_question_has_at_most_the_configured_number_of_words() -> None:
    assert not is_brief("word " * 85, 85)
    assert is_brief("word " * 86, 85)
    assert not is_brief("灯" * 170, 85)
    assert is_brief("灯" * 172, 85)
    assert Check.VERBOSITY in found(GOOD, most=10)


@pytest.mark.promise("synthesis:check:self-contained")
@pytest.mark.parametrize(
    "question",
    [
        "What year does the document mention?",
        "Which town is named in this passage?",
        "According to the search results, who built it?",
        "According to observation 2, who built the tower?",
        "Which keeper stands in observation #3?",
        "What do these documents say of Brenn?",
        "Who, according to the sources, built it?",
        "Which town is named in the context?",
        "Which port is described in this article?",
        "Who founded the school mentioned above?",
        "What is the name of the aforementioned keeper?",
        "What is the seed?",
        "Who is named in the seed topic?",
        "It was built in which year?",
        "When did it sink?",
        "Where was she born?",
        "What is this?",
        "Is this the oldest? Was that?",
        "Their first keeper was who?",
        "该文档提到的灯塔是谁建造的？",
    ],
)
def test_a_question_that_refers_to_something_unseen_is_found(question: str) -> None:
    assert stands_alone(question)
    assert Check.SELF_CONTAINED in found(replace(GOOD, question=question, given=()))


@pytest.mark.promise("synthesis:check:self-contained")
@pytest.mark.parametrize(
    "question",
    [
        GOOD.question,
        "Who founded the Document Foundation?",
        "Which document founded the town of Brenn?",
        "How many metres above the sea does the tower of Brenn stand?",
        "Who keeps the seed bank of Vessel Bay?",
        "What is it that the keeper of Brenn lights?",
        "Is it true that the keeper of Brenn was born in 1841?",
        "In which town was the keeper who left her lamp to the port born?",
        "According to Ada Holm, when does the tide turn?",
        "What is the text of the treaty of Brenn?",
        "Who wrote the source of the Nile survey?",
        "Which step 14 metres wide leads to the tower?",
        "Itzehoe lies on which river?",
        "Who wrote the article 'On Tides'?",
        "What did the text engraved on the bell of Brenn say?",
        "How long is the passage between Brenn and Hull?",
        "Is it warmer in Brenn or in Hull?",
        "How long does it take to sail from Brenn to Hull?",
        "Which of the two, the Gull or the Heron, was built first?",
        "What was the output in 1901 of the mine that Ada Holm inherited?",
        "What did the evidence that Jorun Pike gave in 1902 lead to?",
        "Where does the source that feeds the Brenn canal rise?",
        "灯塔的第一位看守人出生在哪里？",
    ],
)
def test_a_question_that_only_looks_like_pointing_passes(question: str) -> None:
    assert stands_alone(question) == ""


@pytest.mark.promise("synthesis:check:question")
@pytest.mark.parametrize(
    "question", ["Who built it?", "谁建造了灯塔？", "Name the first keeper.", "Who, he asked, was “it?”"]
)
def test_a_text_that_asks_is_a_question(question: str) -> None:
    assert not asks(question)


@pytest.mark.promise("synthesis:check:question")
@pytest.mark.parametrize(
    "question", ["", "Who?", "The tower was built in 1874.", "Names are given to towers."]
)
def test_a_text_that_does_not_ask_is_no_question(question: str) -> None:
    assert asks(question)
    assert Check.QUESTION in found(replace(GOOD, question=question, given=()))
