"""Every check of a draft: what must pass, what must not, and what nearly does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.synthesis._checks import (
    Check,
    Grounding,
    are_enough,
    asks,
    check,
    covers_hops,
    find_citations,
    ground,
    hides_answer,
    is_an_answer,
    is_brief,
    say_something,
    stands_alone,
)
from agentflow.trajectory import Citation, Draft, DraftStep, Step
from tests.agentflow.synthesis._grown import FACTS, GOOD, evidence, step

EVIDENCE = evidence(*FACTS)


def found(draft: Draft, pieces: list[Step] = EVIDENCE, *, least: int = 3, most: int = 85) -> set[Check]:
    """The checks that find something wrong."""
    checked = check(draft, pieces, least_steps=least, most_words=most)
    return {finding.check for finding in checked.findings}


def test_a_good_draft_passes_every_check() -> None:
    checked = check(GOOD, EVIDENCE, least_steps=3, most_words=85)
    assert checked.findings == ()
    assert checked.grounding is Grounding.QUOTED
    spans = [EVIDENCE[quote.observation].observation[quote.start : quote.end] for quote in checked.quotes]
    assert spans == [citation.quote for one in GOOD.steps for citation in one.citations]


def test_each_finding_describes_the_problem_in_one_line() -> None:
    broken = Draft("", "", ())
    checked = check(broken, EVIDENCE, least_steps=3, most_words=85)
    assert {Check.ANSWER, Check.QUESTION, Check.STEPS} <= {finding.check for finding in checked.findings}
    assert all(finding.reason and "\n" not in finding.reason for finding in checked.findings)


@given(
    question=st.text(max_size=60),
    answer=st.text(max_size=20),
    steps=st.lists(st.tuples(st.text(max_size=20), st.integers(-1, 4), st.text(max_size=10)), max_size=4),
)
def test_no_draft_however_odd_breaks_the_checks(
    question: str, answer: str, steps: list[tuple[str, int, str]]
) -> None:
    draft = Draft(question, answer, tuple(DraftStep(text, (Citation(n, quote),)) for text, n, quote in steps))
    check(draft, EVIDENCE, least_steps=3, most_words=85)


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
    assert hides_answer(question, answer)
    assert Check.LEAKAGE in found(replace(GOOD, question=question, answer=answer))


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
    assert not hides_answer(question, answer)
    assert Check.LEAKAGE not in found(replace(GOOD, question=question, answer=answer))


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
    assert Check.SELF_CONTAINED in found(replace(GOOD, question=question))


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
    assert Check.QUESTION in found(replace(GOOD, question=question))


@pytest.mark.promise("synthesis:check:answer")
@pytest.mark.parametrize(
    "answer", ["Jorun Pike", "0", "no", "none", "Unknown Pleasures", "北京", "word " * 30]
)
def test_a_short_answer_passes(answer: str) -> None:
    assert not is_an_answer(answer)


@pytest.mark.promise("synthesis:check:answer")
@pytest.mark.parametrize("answer", ["", "  ", "?!", "Unknown.", "N/A", "I don’t know", "未知", "word " * 31])
def test_an_empty_answer_and_an_essay_are_found(answer: str) -> None:
    assert is_an_answer(answer)
    assert Check.ANSWER in found(replace(GOOD, answer=answer))


@pytest.mark.promise("synthesis:check:steps")
def test_steps_must_be_enough_and_different() -> None:
    first, second, third = GOOD.steps
    assert not are_enough((first, second, third), 3)
    assert "2 steps" in are_enough((first, second), 3)
    assert "step 2 is empty" in are_enough((first, step(" …"), third), 3)
    repeated = replace(third, step="the first keeper of the LIGHTHOUSE was Ada Holm")
    assert "step 3 repeats step 1" in are_enough((first, second, repeated), 3)
    assert Check.STEPS in found(replace(GOOD, steps=(first, third)))


@pytest.mark.promise("synthesis:check:step-content")
def test_a_step_must_add_something() -> None:
    assert not say_something(GOOD.steps, GOOD.question)
    assert not say_something((step("1874 - 1841 = 33"),), GOOD.question)
    assert "too little" in say_something((step("Ada Holm"),), GOOD.question)
    assert "repeats the question" in say_something((step(GOOD.question.rstrip("?")),), GOOD.question)
    assert "repeats the question" not in say_something(
        (step("Who founded the school? Jorun Pike."),), GOOD.question
    )
    assert Check.STEP_CONTENT in found(replace(GOOD, steps=(*GOOD.steps, step("Yes.", (1, "Brenn")))))


@pytest.mark.promise("synthesis:check:citations")
@pytest.mark.parametrize(
    ("cited", "why"),
    [
        (step("A step of reasoning."), "step 1 cites nothing"),
        (step("A step of reasoning.", (4, "Brenn")), "cites observation 4: there are 1 to 3"),
        (step("A step of reasoning.", (0, "Brenn")), "cites observation 0"),
        (step("A step of reasoning.", (1, "was built in 1875")), "does not say: was built in 1875"),
        (step("A step of reasoning.", (2, "Its first keeper")), "observation 2 does not say"),
        (step("A step of reasoning.", (1, "187")), "does not say: 187"),
        (step("A step of reasoning.", (1, "")), "does not say"),
        (step("A step of reasoning.", (1, "Brenn"), (1, "Its last keeper")), "Its last keeper"),
    ],
)
def test_a_step_not_supported_by_its_citations_is_found(cited: DraftStep, why: str) -> None:
    quotes, reason = find_citations((cited,), EVIDENCE)
    assert quotes == ()
    assert why in reason
    assert Check.CITATIONS in found(replace(GOOD, steps=(cited, *GOOD.steps)))


@pytest.mark.promise("synthesis:check:citations")
def test_a_quote_is_located_despite_unicode_and_space_differences() -> None:
    pieces = evidence("The  “Gull”\nleft Brenn in 1901–02.")
    quotes, reason = find_citations((step("It left.", (1, 'The "Gull" left Brenn in 1901-02')),), pieces)
    assert reason == ""
    assert pieces[0].observation[quotes[0].start : quotes[0].end] == "The  “Gull”\nleft Brenn in 1901–02"


@pytest.mark.promise("synthesis:check:multi-hop")
def test_two_observations_must_be_cited_where_there_are_two() -> None:
    one_look = tuple(replace(one, citations=(Citation(1, "Ada Holm"),)) for one in GOOD.steps)
    quotes, _ = find_citations(one_look, EVIDENCE)
    assert covers_hops(quotes, EVIDENCE)
    assert covers_hops(quotes, EVIDENCE[:1]) == ""
    assert Check.MULTI_HOP in found(replace(GOOD, steps=one_look, answer="Ada Holm"))
    assert Check.MULTI_HOP not in found(GOOD)


def grounding(answer: str, pieces: list[Step], *quotes: tuple[int, str]) -> Grounding | None:
    """Return the source of the answer, given the quotes."""
    cited, reason = find_citations((step("A step.", *quotes),), pieces)
    assert reason == ""
    return ground(answer, cited, pieces)[0]


@pytest.mark.promise("synthesis:check:grounding")
@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("Jorun Pike", "founded by Jorun Pike in 1900", Grounding.QUOTED),
        ("JORUN PIKE.", "founded by Jorun Pike in 1900", Grounding.QUOTED),
        ("Brenn, Vessel Bay and Hull", "Hull, Vessel Bay, Brenn: three ports", Grounding.QUOTED),
        ("5 km", "It is 5km away", Grounding.QUOTED),
        ("1500", "It has 1,500 lamps", Grounding.QUOTED),
        ("12 km", "It is 12 kilometres away", Grounding.NUMBER),
        ("12%", "It rose by 12 percent", Grounding.NUMBER),
        ("3,000,000", "It has 3 million lamps", Grounding.NUMBER),
        ("5", "It took 50 ships", None),
        ("5 km", "It weighs 5 kg", None),
        ("12%", "It took 12 ships", None),
        ("no", "He left a note", None),
        ("Pike Jorun", "founded by Jorun Pike", None),
        ("Brenn and Oslo", "Brenn is a port", None),
    ],
)
def test_an_answer_must_be_in_the_cited_text(answer: str, text: str, expected: Grounding | None) -> None:
    assert grounding(answer, evidence(text), (1, text)) is expected


@pytest.mark.promise("synthesis:check:grounding")
def test_an_answer_beside_the_quote_does_not_count() -> None:
    assert grounding("1874", EVIDENCE, (1, "Its first keeper was Ada Holm")) is None
    assert Check.GROUNDING in found(replace(GOOD, answer="12 km"))


@pytest.mark.promise("synthesis:check:computed")
def test_an_answer_that_a_tool_computed_from_cited_numbers_is_grounded() -> None:
    run = evidence(
        "stdout:\nage = 33", tool="code_run", arguments={"code": "age = 1874 - 1841\nprint('age =', age)"}
    )
    cited = ((1, "was built in 1874"), (2, "in 1841"), (4, "stdout"))
    assert grounding("33", [*EVIDENCE, *run], *cited) is Grounding.COMPUTED
    assert grounding("33 years", [*EVIDENCE, *run], *cited) is Grounding.COMPUTED
    assert grounding("34", [*EVIDENCE, *run], *cited) is None


@pytest.mark.promise("synthesis:check:computed")
@pytest.mark.parametrize(
    "code",
    [
        "sum([1874, 1841])",
        "sum([1874,1841])",
        "1874*1.0+1841",
        "0.15*24766.67",
    ],
)
def test_numbers_in_a_program_are_read_by_its_syntax(code: str) -> None:
    pieces = [
        *evidence("Built in 1874, 15% of 24,766.67 crowns, for Ada of 1841."),
        *evidence("it says 3715", tool="code_run", arguments={"code": code}),
    ]
    cited = ((1, pieces[0].observation), (2, "it says"))
    assert grounding("3715", pieces, *cited) is Grounding.COMPUTED


@pytest.mark.promise("synthesis:check:computed")
@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("code_run", "1874 - 1840"),
        ("code_run", "print(33)"),
        ("code_run", "40 - 7"),
        ("rag_search", "1874 - 1841"),
    ],
)
def test_a_program_with_numbers_from_no_source_does_not_ground_an_answer(tool: str, code: str) -> None:
    run = evidence("value: 33", tool=tool, arguments={"code": code})
    cited = ((1, "was built in 1874"), (2, "in 1841"), (4, "value"))
    assert grounding("33", [*EVIDENCE, *run], *cited) is None


@pytest.mark.promise("synthesis:check:computed")
def test_a_program_that_prints_the_answer_it_was_given_shows_nothing() -> None:
    echo = evidence("Jorun Pike", tool="bash_run", arguments={"command": "echo 'Jorun Pike'"})
    assert grounding("Jorun Pike", echo, (1, "Jorun Pike")) is None
    cat = evidence("Jorun Pike", tool="bash_run", arguments={"command": "cat founder.txt"})
    assert grounding("Jorun Pike", cat, (1, "Jorun Pike")) is Grounding.QUOTED
