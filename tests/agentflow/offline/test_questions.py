"""Questions that the offline engine writes over the bundled corpus, and reads back."""

import re
from functools import cache

import pytest

from agentflow.offline import answer
from agentflow.questions import (
    AskedQuestion,
    Draft,
    HiddenAnswer,
    HiddenRequest,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingRequest,
    Readings,
    RuleSettings,
    ShownDocument,
    check_rules,
    documents_from,
)
from tests.agentflow.offline._walks import documents

STUTTER = re.compile(r"\b(\w+) \1\b|\bthing\b|\[|\]|  |_")


@cache
def shown(start: int, count: int = 14) -> tuple[ShownDocument, ...]:
    """Return documents of the bundled corpus."""
    return documents_from((each.id, each.title, each.text) for each in documents()[start : start + count])


@cache
def drafts(start: int) -> tuple[Draft, ...]:
    """Return the drafts of the engine about documents."""
    proposal = answer(ProposalRequest(documents=shown(start), count=12, keep=10, seed="Explore them."))
    assert isinstance(proposal, QuestionProposal)
    return proposal.drafts


@pytest.mark.promise("offline:questions")
@pytest.mark.parametrize("start", [0, 28, 56])
def test_questions_are_worded_well_and_pass_every_rule(start: int) -> None:
    assert len(drafts(start)) >= 6
    assert len({draft.kind for draft in drafts(start)}) >= 4
    for draft in drafts(start):
        assert draft.question[0].isupper()
        assert draft.question.endswith("?")
        assert STUTTER.search(draft.question) is None, draft.question
        assert check_rules(draft, shown(start), RuleSettings()).findings == (), draft.question
        assert len(draft.steps) >= 3
        assert len(draft.documents) >= 2


@pytest.mark.promise("offline:questions")
@pytest.mark.parametrize("start", [0, 28, 56])
def test_a_reader_of_all_documents_gives_the_answer_and_one_without_them_does_not(start: int) -> None:
    asked = tuple(AskedQuestion(number, draft.question) for number, draft in enumerate(drafts(start), 1))
    readings = answer(ReadingRequest(documents=shown(start), questions=asked))
    assert isinstance(readings, Readings)
    assert [each.answers for each in readings.readings] == [(draft.answer,) for draft in drafts(start)]
    lost = 0
    for draft in drafts(start):
        left = tuple(each for each in shown(start) if each.number not in draft.documents)
        found = answer(HiddenRequest(documents=left, question=draft.question))
        assert isinstance(found, HiddenAnswer)
        lost += found.answer == ""
    assert lost >= len(drafts(start)) - 1


@pytest.mark.promise("offline:questions")
def test_a_document_that_answers_alone_or_says_something_else_is_found() -> None:
    question = "Which of Fern Light, Gull Light and Tern Light has the most steps?"
    texts = {
        "all": "Fern Light has 212 steps. Gull Light has 99 steps. Tern Light has 180 steps.",
        "other": "Fern Light has 212 steps. Gull Light has 300 steps. Tern Light has 180 steps.",
    }
    found = answer(
        OthersRequest(
            question=question,
            answer="Fern Light",
            candidates=(),
            documents=documents_from((id, "", text) for id, text in texts.items()),
        )
    )
    assert isinstance(found, OtherAnswers)
    assert found.one_document == 1
    assert [(each.answer, each.document) for each in found.others] == [("Gull Light", 2)]


@pytest.mark.promise("offline:questions")
def test_texts_with_other_sentence_patterns_give_no_question() -> None:
    plain = documents_from([("a", "Notes", "We shipped it."), ("b", "More", "It was late, they said.")])
    proposal = answer(ProposalRequest(documents=plain, count=12, keep=10, seed="Explore them."))
    assert isinstance(proposal, QuestionProposal)
    assert proposal.drafts == ()
