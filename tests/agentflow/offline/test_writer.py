"""The offline generator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.offline._language import bounded
from agentflow.offline._writer import write
from agentflow.synthesis._checks import check
from agentflow.trajectory import Action, Draft, Rejection, Step, ToolCard, WriteRequest
from tests.agentflow.offline._walks import BASH, BATCH, CODE, GET, SEARCH, seeds, walks

FOUNDED = (
    "Fern Island (fern)\nThe main town of Fern Island is Alba, which lies in a bay. It has 900 inhabitants."
)
TOWN = "Alba (alba)\nAlba is a port. Alba was founded in 1204 by Ida Holt. It keeps 14 bells."


def seen(*observations: str) -> tuple[Step, ...]:
    return tuple(
        Step("look", Action("rag_search", {"query": str(n)}), text) for n, text in enumerate(observations)
    )


def written(*observations: str, rejected: tuple[Draft, ...] = ()) -> Draft:
    rejections = tuple(Rejection(draft, ("no",)) for draft in rejected)
    return write(WriteRequest(seed="Explore Fern Island", evidence=seen(*observations), rejected=rejections))


def assert_good(draft: Draft, evidence: tuple[Step, ...]) -> None:
    """Check the invariants of a draft."""
    citations = [citation for step in draft.steps for citation in step.citations]
    assert all(citation.quote in evidence[citation.observation - 1].observation for citation in citations)
    assert bounded(draft.answer, citations[-1].quote)
    assert not bounded(draft.answer, draft.question)
    assert len({citation.observation for citation in citations}) >= 2
    assert len({step.step for step in draft.steps}) == len(draft.steps) >= 3
    assert draft.question.endswith("?")
    assert len(draft.question.split()) <= 60
    assert check(draft, evidence, least_steps=3, most_words=60).findings == ()


@pytest.mark.promise("offline:grounded", "offline:many-hops")
@pytest.mark.parametrize("tools", [(SEARCH,), (SEARCH, BATCH, GET)])
@pytest.mark.parametrize("content", seeds())
def test_drafts_over_the_whole_corpus_are_grounded_and_pass_every_check(
    content: str, tools: tuple[ToolCard, ...]
) -> None:
    for path in walks(content, tools):
        draft = write(WriteRequest(seed=content, evidence=path))
        assert draft.answer
        assert_good(draft, path)


@pytest.mark.promise("offline:first-dataset")
def test_paths_of_the_bundled_seeds_give_mostly_different_questions() -> None:
    questions = [
        write(WriteRequest(seed=content, evidence=path)).question
        for content in seeds()
        for path in walks(content, (SEARCH, BATCH, GET))
    ]
    assert len(questions) == 96
    assert len(set(questions)) >= 48


@pytest.mark.promise("offline:hidden")
def test_a_question_describes_its_intermediate_results() -> None:
    draft = written(FOUNDED, TOWN)
    assert draft.question in {
        "In which year was the main town of Fern Island founded?",
        "How many bells does the main town of Fern Island keep?",
        "Who founded the main town of Fern Island?",
    }
    assert_good(draft, seen(FOUNDED, TOWN))


@pytest.mark.promise("offline:hidden")
def test_a_verb_goes_before_the_clause_that_describes_its_subject() -> None:
    draft = written("Ida Holt was born in Alba in 1170. She was a merchant.", "Alba was founded in 1150.")
    assert draft.question == "In which year was the place founded where Ida Holt was born?"
    assert draft.answer == "1150"


@pytest.mark.promise("offline:other-tries")
def test_each_rejection_gives_another_question_while_there_is_one() -> None:
    rejected: tuple[Draft, ...] = ()
    while (draft := written(FOUNDED, TOWN, rejected=rejected)).answer:
        assert draft.question not in {other.question for other in rejected}
        assert_good(draft, seen(FOUNDED, TOWN))
        rejected += (draft,)
    assert len(rejected) >= 3
    assert len({draft.answer for draft in rejected[:3]}) == 3


@pytest.mark.promise("offline:computes")
@pytest.mark.parametrize("tool", [BASH, CODE])
def test_the_question_is_about_the_value_computed_at_the_end(tool: ToolCard) -> None:
    years = Step("compute", Action(tool.name, {"code": "echo $((1621 - 1204))"}), "years between: 417")
    evidence = (*seen("Alba was founded in 1204.", "Fern Light was built in 1621 of slate."), years)
    draft = write(WriteRequest(seed="Explore Alba", evidence=evidence))
    assert draft.question == (
        "How many years passed between the year in which Alba was founded and the year in which Fern Light was built?"
    )
    assert draft.answer == "417"
    assert_good(draft, evidence)


@pytest.mark.promise("offline:any-text")
def test_without_a_matching_pattern_the_question_is_about_a_missing_number() -> None:
    evidence = seen("Every spring Alba smells of tar.", "Nobody but Alba can feed 312 sailors at once.")
    draft = write(WriteRequest(seed="Explore Alba", evidence=evidence))
    assert draft.question == (
        "Which number is missing from “Nobody but X can feed … sailors at once”, "
        "where X stands for the same name as in “Every spring X smells of tar”?"
    )
    assert_good(draft, evidence)


@pytest.mark.promise("offline:nothing")
@pytest.mark.parametrize(
    "observations", [(), ("",), ("no hits", "no hits"), (TOWN,), ("灯塔建于1621年。", "灯塔高43米。")]
)
def test_without_a_possible_question_the_draft_is_empty(observations: tuple[str, ...]) -> None:
    assert written(*observations) == Draft("", "", ())


TELLING = st.sampled_from(
    [
        "Alba",
        "the Grey Petrel",
        "was founded",
        "was built",
        "in 1204",
        "by Ida Holt",
        "The captain of",
        "is",
        "43 metres tall",
        "has 9 bells",
        "It",
        ".",
        ". ",
        ",",
        "\n",
        "[1] Alba (alba)\n",
        "É. Holt",
        "灯塔",
    ]
)


@pytest.mark.promise("offline:nothing", "offline:grounded")
@given(st.lists(st.lists(TELLING, max_size=25).map(" ".join), max_size=4))
def test_for_any_text_a_draft_is_empty_or_quotes_verbatim(observations: list[str]) -> None:
    draft = written(*observations)
    for step in draft.steps:
        for citation in step.citations:
            assert citation.quote in observations[citation.observation - 1]
    if draft.answer:
        assert bounded(draft.answer, draft.steps[-1].citations[-1].quote)
        assert not bounded(draft.answer, draft.question)


@pytest.mark.promise("offline:nothing")
@given(st.lists(st.text(max_size=300), max_size=4))
def test_no_text_makes_writing_fail(observations: list[str]) -> None:
    assert written(*observations) == written(*observations)


@pytest.mark.promise("offline:nothing")
@pytest.mark.parametrize(
    "piece", ["A", "a ", "A ", "Alba of ", "1 ", "(", "A was built in 1", "The a ", "Alba. "]
)
def test_huge_texts_are_cut(piece: str) -> None:
    assert written(piece * 50_000, TOWN) == written(piece * 50_000, TOWN)
