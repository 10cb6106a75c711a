"""From a tree to pairs: drafts, checks, citations, and nothing asked twice."""

from functools import partial
from typing import Any

import msgspec
import pytest

from agentflow.errors import ModelFailureKind, RunStopped, StopCause
from agentflow.journal import Page, Writing
from agentflow.questions import (
    KIND_TURNS,
    Basis,
    GateCheck,
    HiddenAnswer,
    HiddenRequest,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingRequest,
    RecallRequest,
    RepairRequest,
    documents_of,
)
from agentflow.synthesis import SeedResult, SynthesisConfig, write_questions
from agentflow.testing import ScriptedRoles
from agentflow.trace import Example, Failure, Judgement, Plan, Reply, Usage
from tests._pages import written
from tests.agentflow.synthesis._careless import Careless
from tests.agentflow.synthesis._grown import (
    FACTS,
    QUESTIONS,
    SEED,
    chain,
    drafts_of,
    failing_on,
    page,
    roles,
    tree,
)

CONFIG = SynthesisConfig()
OTHERS = ("The port of Brenn has a crane.", "A crane lifts casks.", "Casks hold fish.")
DOWN = Failure(ModelFailureKind.UNAVAILABLE, "no answer")


@pytest.mark.promise("synthesis:questions:pair")
async def test_a_pair_rests_on_quotes_that_are_spans_of_the_observations() -> None:
    grown = chain()
    result = await write_questions(grown, CONFIG, roles(), page())
    assert len(result.pairs) == len(QUESTIONS)
    for number, pair in enumerate(result.pairs):
        assert (pair.tries, pair.engine, pair.number) == (1, "offline", number)
        assert pair.id == f"{result.trajectories[0].id}_qa_{number}"
        assert pair.hops == 2
        assert len(pair.documents) >= 2
        assert len(pair.reasoning_steps) >= 3
        for step in pair.reasoning_steps:
            assert step.citations or step.computes
            for cited in step.citations:
                observation = grown.by_id[cited.node_id].observation.text
                assert observation[cited.start : cited.end] == cited.quote
        checks = [vote.check for vote in pair.votes]
        assert checks == [
            GateCheck.ONE_DOCUMENT,
            GateCheck.KNOWN,
            GateCheck.EVIDENCE,
            GateCheck.ONE_DOCUMENT,
        ]


@pytest.mark.promise("synthesis:questions:request")
async def test_the_generator_gets_the_texts_of_the_settings() -> None:
    config = SynthesisConfig(
        seed_description="ports",
        synthesis_tips="ask why",
        qa_examples=[{"question": "Who?", "answer": "Ada"}],
        drafts=5,
        max_questions=1,
    )
    asked = roles()
    result = await write_questions(chain(), config, asked, page())
    [request] = [each for each in asked.asked if isinstance(each, ProposalRequest)]
    assert (request.seed, request.seed_description, request.tips) == (SEED.content, "ports", "ask why")
    assert request.examples == (Example("Who?", "Ada"),)
    assert (request.count, request.keep) == (5, 1)
    assert request.kinds == KIND_TURNS[0]
    assert len(result.pairs) == 1


@pytest.mark.promise("synthesis:questions:blind")
async def test_no_reader_is_shown_a_proposed_answer() -> None:
    asked = roles()
    result = await write_questions(chain(), CONFIG, asked, page())
    answers = [pair.answer for pair in result.pairs if pair.answer.isalpha()]
    for request in asked.asked:
        if isinstance(request, HiddenRequest | ReadingRequest | OthersRequest):
            # Documents contain answers; nothing else does.
            request = msgspec.structs.replace(request, documents=())
        if not isinstance(request, ProposalRequest | RepairRequest):
            assert not any(answer in msgspec.json.encode(request).decode() for answer in answers)


@pytest.mark.promise("synthesis:questions:tries")
async def test_the_generator_repairs_a_draft_once_with_the_reasons() -> None:
    asked = Careless()
    result = await write_questions(chain(), CONFIG, asked, page())
    [request] = asked.repairs
    assert all("a text that its reader does not have" in each.reasons[0] for each in request.fallen)
    assert {pair.tries for pair in result.pairs} == {2}
    assert len(result.pairs) == len(QUESTIONS)
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {GateCheck.FORM}
    again = await write_questions(chain(), CONFIG, Careless(always=True), page())
    assert again.pairs == ()
    assert {draft.tries for draft in again.rejected} == {1, 2}
    unrepaired = await write_questions(chain(), SynthesisConfig(repair=False), Careless(), page())
    assert (unrepaired.pairs, {draft.tries for draft in unrepaired.rejected}) == ((), {1})


@pytest.mark.promise("synthesis:questions:known")
async def test_a_question_that_the_learner_knows_is_labelled_or_dropped() -> None:
    known = {QUESTIONS[0][1]: QUESTIONS[0][2], QUESTIONS[1][1]: "13 kilometres"}
    asked = roles(known=known)
    labelled = await write_questions(chain(), CONFIG, asked, page())
    assert [pair.known for pair in labelled.pairs] == [1.0, 0.0, 0.0]
    assert [pair.disputed for pair in labelled.pairs] == [False, True, False]
    assert asked.counts["RecallRequest"] == 3 * len(QUESTIONS)
    dropping = SynthesisConfig(known="drop", repair=False)
    dropped = await write_questions(chain(), dropping, roles(known=known), page())
    assert [pair.question for pair in dropped.pairs] == [QUESTIONS[1][1], QUESTIONS[2][1]]
    [easy] = dropped.rejected
    assert easy.findings[0].check is GateCheck.KNOWN
    unasked = roles(known=known)
    await write_questions(chain(), SynthesisConfig(closed_book_samples=0), unasked, page())
    assert not unasked.counts["RecallRequest"]


class Guesses(ScriptedRoles):
    """Answers without reading."""

    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """Return the answer whatever is shown."""
        draft = self.drafts[request.question]
        return self._reply(request, HiddenAnswer(f"{draft.answer} {draft.unit}".strip(), Basis.GUESSED, ()))


@pytest.mark.promise("synthesis:questions:hops")
async def test_a_question_that_a_reader_answers_without_its_documents_is_rejected() -> None:
    result = await write_questions(chain(), CONFIG, Guesses(drafts_of), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {
        GateCheck.ONE_DOCUMENT
    }


@pytest.mark.promise("synthesis:questions:hops")
async def test_a_reader_that_can_not_be_asked_does_not_prove_that_a_document_is_needed() -> None:
    result = await write_questions(chain(), CONFIG, roles(fails=failing_on("HiddenRequest", DOWN)), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {
        GateCheck.ONE_DOCUMENT
    }


@pytest.mark.promise("synthesis:questions:failures")
@pytest.mark.parametrize("kind", ["ProposalRequest", "HiddenRequest", "ReadingRequest"])
async def test_a_failed_call_makes_no_pair_and_is_counted(kind: str) -> None:
    asked = roles(fails=failing_on(kind, DOWN))
    result = await write_questions(chain(), CONFIG, asked, page())
    assert result.pairs == ()
    assert result.model_failures == {"unavailable": asked.counts[kind]}


@pytest.mark.promise("synthesis:questions:failures")
async def test_an_answer_that_was_cut_is_asked_for_in_two_halves() -> None:
    def cut(request: object) -> Failure | None:
        whole = isinstance(request, ProposalRequest) and request.count == CONFIG.drafts
        return Failure(ModelFailureKind.TOO_LONG, "cut") if whole else None

    asked = roles(fails=cut)
    result = await write_questions(chain(), CONFIG, asked, page())
    assert asked.counts["ProposalRequest"] == 3
    assert len(result.pairs) == len(QUESTIONS)


@pytest.mark.promise("synthesis:questions:failures")
async def test_failed_calls_of_growth_are_counted_too() -> None:
    whole = page()
    await whole.note("plan/root", Reply[Plan](failure=DOWN))
    await whole.note("node/0", Reply[Judgement](failure=DOWN))
    result = await write_questions(chain(), CONFIG, roles(), whole)
    assert result.model_failures == {"unavailable": 2}


@pytest.mark.promise("synthesis:questions:settings")
@pytest.mark.parametrize(
    "settings",
    [
        {"max_questions": 0},
        {"max_question_words": 3, "repair": False},
        {"min_documents": 4},
        {"min_reasoning_steps": 5},
        {"max_documents": 1},
        {"max_selected_traj": 0},
    ],
)
async def test_the_settings_of_the_checks_take_effect(settings: dict[str, Any]) -> None:
    config = SynthesisConfig.model_validate(settings)
    assert (await write_questions(chain(), config, roles(), page())).pairs == ()


@pytest.mark.promise("synthesis:questions:engine")
async def test_a_pair_names_the_model_that_wrote_it() -> None:
    config = SynthesisConfig.model_validate({"generator_model": {"model_name": "someone"}})
    result = await write_questions(chain(), config, roles(), page())
    assert {pair.engine for pair in result.pairs} == {"someone"}


@pytest.mark.promise("synthesis:questions:resume")
async def test_recorded_calls_are_not_repeated_after_an_interruption_at_any_point() -> None:
    whole = page()
    undisturbed = await write_questions(chain(), CONFIG, roles(), whole)
    assert undisturbed.pairs
    every = len(list(whole.keys()))
    kept: dict[str, bytes] = {}
    asked = roles()

    async def write(room: list[int], key: str, body: bytes) -> Writing:
        if not room:
            raise RunStopped(StopCause.JOURNAL, "the disk is full")
        room.pop()
        assert key not in kept
        kept[key] = body
        return written()

    for _ in range(every + 1):
        # A reader knows the drafts of the run before it was interrupted.
        asked.drafts = {draft.question: draft for draft in drafts_of(documents_of(chain().nodes))}
        try:
            result = await write_questions(chain(), CONFIG, asked, Page(kept, partial(write, [1])))
        except RunStopped:
            continue
        assert result == undisturbed
        break
    else:
        pytest.fail("it never ended")
    assert kept.keys() == set(whole.keys())


@pytest.mark.promise("synthesis:questions:stopped")
async def test_run_stopped_is_raised_unchanged() -> None:
    class Broke(ScriptedRoles):
        async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
            raise RunStopped(StopCause.BUDGET, "the budget is used up")

    with pytest.raises(RunStopped, match="the budget is used up"):
        await write_questions(chain(), CONFIG, Broke(drafts_of), page())


@pytest.mark.promise("synthesis:questions:result")
async def test_a_result_is_read_back_unchanged_from_the_journal() -> None:
    for asked in (roles(), Careless(), roles(fails=failing_on("", DOWN))):
        before = await write_questions(chain(), CONFIG, asked, page())
        assert msgspec.json.decode(msgspec.json.encode(before), type=SeedResult) == before
    failed = SeedResult(failure="no sandbox")
    assert msgspec.json.decode(msgspec.json.encode(failed), type=SeedResult) == failed


@pytest.mark.promise("synthesis:questions:result")
async def test_a_tree_without_a_path_makes_no_call() -> None:
    asked = roles()
    result = await write_questions(tree({}), CONFIG, asked, page())
    assert (result.trajectories, result.pairs, result.usage) == ((), (), {})
    assert result.left_out == {"no evidence": 1}
    assert asked.asked == []


@pytest.mark.promise("synthesis:questions:budget")
async def test_a_kept_pair_costs_few_model_calls() -> None:
    asked = roles()
    result = await write_questions(chain(), CONFIG, asked, page())
    checks = len(asked.asked) - sum(isinstance(each, RecallRequest) for each in asked.asked)
    assert checks <= 5 * len(result.pairs)
    assert sum((used for used in result.usage.values()), Usage()).calls == len(asked.asked)


@pytest.mark.promise("synthesis:questions:context")
async def test_a_model_with_a_small_context_writes_fewer_questions_over_fewer_documents() -> None:
    grown = chain([fact + f" It rained on day {day}." * 60 for day, fact in enumerate((*FACTS, *OTHERS), 1)])
    asked = roles()
    write = asked.propose_questions

    async def with_small_context(request: ProposalRequest) -> Reply[QuestionProposal]:
        if len(request.documents) > 3:
            asked.asked.append(request)
            return Reply(failure=Failure(ModelFailureKind.TOO_LONG, "the prompt is too long"))
        return await write(request)

    asked.propose_questions = with_small_context  # type: ignore[method-assign]
    await write_questions(grown, CONFIG, asked, page())
    requests = [each for each in asked.asked if isinstance(each, ProposalRequest)]
    whole, *halves = requests
    parts = [{document.id for document in each.documents} for each in halves if len(each.documents) < 4]
    assert {each.count for each in halves if len(each.documents) < 4} == {whole.count // 2}
    assert len(parts) == 2
    assert parts[0].isdisjoint(parts[1])
    assert all(part < {document.id for document in whole.documents} for part in parts)


@pytest.mark.promise("synthesis:questions:licence")
async def test_a_pair_names_the_licences_of_its_documents() -> None:
    config = SynthesisConfig(licences={"rag_search*": "CC-BY-4.0"})
    result = await write_questions(chain(), config, roles(), page())
    assert {document.licence for pair in result.pairs for document in pair.documents} == {"CC-BY-4.0"}
    result = await write_questions(chain(), CONFIG, roles(), page())
    assert {document.licence for pair in result.pairs for document in pair.documents} == {""}
