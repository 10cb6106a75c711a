"""From a tree to pairs: facts, words, checks, reasons, and nothing asked twice."""

from functools import partial
from typing import Any

import msgspec
import pytest

from agentflow.errors import ModelFailureKind, RunStopped, StopCause
from agentflow.facts import HIDDEN, EvidenceAnswer, EvidenceRequest, Wording, WordingRequest
from agentflow.journal import Page, Writing
from agentflow.synthesis import SeedResult, SynthesisConfig, write_questions
from agentflow.synthesis._question_draft import Check
from agentflow.testing import ScriptedRoles
from agentflow.trajectory import Example, Failure, Judgement, Plan, Reply, Usage
from tests._pages import written
from tests.agentflow.synthesis._grown import FACTS, SEED, STATEMENTS, chain, failing_on, page, roles, tree

CONFIG = SynthesisConfig()
DOWN = Failure(ModelFailureKind.UNAVAILABLE, "no answer")


@pytest.mark.promise("synthesis:questions:pair")
async def test_a_pair_rests_on_facts_whose_citations_are_spans_of_the_observations() -> None:
    grown = chain()
    result = await write_questions(grown, CONFIG, roles(), page())
    assert result.pairs
    for number, pair in enumerate(result.pairs):
        assert (pair.tries, pair.engine, pair.number) == (1, "offline", number)
        assert pair.id == f"{result.trajectories[0].id}_qa_{number}"
        assert pair.hops == len(pair.facts) >= 2
        assert len(pair.support) >= 2
        assert len(pair.reasoning_steps) >= 3
        for step in pair.reasoning_steps:
            assert step.citations
            for citing in step.citations:
                observation = grown.by_id[citing.node_id].observation.text
                assert observation[citing.start : citing.end] == citing.quote
        checks = [vote.check for vote in pair.votes]
        assert checks == [Check.MEANING, Check.EVIDENCE, Check.TOO_EASY, Check.HOPS]


@pytest.mark.promise("synthesis:questions:request")
async def test_the_generator_gets_the_texts_of_the_settings_but_no_answer() -> None:
    config = SynthesisConfig(
        seed_description="ports",
        synthesis_tips="ask why",
        qa_examples=[{"question": "Who?", "answer": "Ada"}],
        max_questions=1,
    )
    asked = roles()
    result = await write_questions(chain(), config, asked, page())
    [request] = [one for one in asked.asked if isinstance(one, WordingRequest)]
    assert (request.seed, request.seed_description, request.tips) == (SEED.content, "ports", "ask why")
    assert request.examples == (Example("Who?", "Ada"),)
    [pair] = result.pairs
    assert pair.answer not in msgspec.json.encode(request).decode()


@pytest.mark.promise("synthesis:questions:blind")
async def test_no_reader_is_shown_a_proposed_answer() -> None:
    asked = roles()
    result = await write_questions(chain(), CONFIG, asked, page())
    answers = {pair.question: pair.answer for pair in result.pairs}
    for request in asked.asked:
        if isinstance(request, EvidenceRequest) and request.question in answers:
            outside = msgspec.structs.replace(request, passages=())
            assert answers[request.question] not in msgspec.json.encode(outside).decode()


class Careless(ScriptedRoles):
    """Names a hidden thing until it was told not to."""

    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """Write a question that is too long at first."""
        if len(request.rejected) < 2:
            return self._reply(request, Wording("Which one is it, according to the documents?"))
        return await super().word(request)


@pytest.mark.promise("synthesis:questions:tries")
async def test_the_generator_gets_the_reasons_of_a_rejection() -> None:
    asked = Careless(STATEMENTS)
    result = await write_questions(chain(), SynthesisConfig(max_questions=1), asked, page())
    requests = [one for one in asked.asked if isinstance(one, WordingRequest)]
    assert [len(one.rejected) for one in requests[:3]] == [0, 1, 2]
    assert any("documents" in reason for reason in requests[1].rejected[0].reasons)
    assert [pair.tries for pair in result.pairs] == [3]
    assert {finding.check for draft in result.rejected for finding in draft.findings} >= {
        Check.SELF_CONTAINED
    }


@pytest.mark.promise("synthesis:questions:tries")
@pytest.mark.parametrize("most", [1, 2])
async def test_a_question_is_tried_at_most_the_configured_number_of_times(most: int) -> None:
    config = SynthesisConfig(max_drafts=most)
    result = await write_questions(chain(), config, Careless(STATEMENTS), page())
    assert result.pairs == ()
    assert {draft.number for draft in result.rejected} == set(range(1, most + 1))


@pytest.mark.promise("synthesis:questions:too-easy")
async def test_a_question_that_a_model_answers_without_evidence_is_rejected() -> None:
    before = await write_questions(chain(), CONFIG, roles(), page())
    known = {pair.question: pair.answer for pair in before.pairs if pair.kind == "bridge"}
    assert known
    after = await write_questions(chain(), CONFIG, roles(known=known), page())
    assert not {pair.question for pair in after.pairs} & set(known)
    easy = [one for one in after.rejected if one.findings[0].check is Check.TOO_EASY]
    assert {one.question for one in easy} == set(known)
    unchecked = SynthesisConfig(check_answerability=False)
    asked = roles(known=known)
    assert {one.question for one in (await write_questions(chain(), unchecked, asked, page())).pairs} >= set(
        known
    )
    assert not asked.counts["ClosedBookRequest"]


class Guesses(ScriptedRoles):
    """Answers without reading."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(STATEMENTS)
        self._answers = answers

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Return the answer whatever is shown."""
        said = self._answers.get(request.question)
        return self._reply(request, EvidenceAnswer((), "", () if said is None else (said,)))


@pytest.mark.promise("synthesis:questions:hops")
async def test_a_question_that_a_reader_answers_without_its_facts_is_rejected() -> None:
    before = await write_questions(chain(), CONFIG, roles(), page())
    result = await write_questions(
        chain(), CONFIG, Guesses({pair.question: pair.answer for pair in before.pairs}), page()
    )
    assert result.pairs == ()
    assert Check.HOPS in {finding.check for draft in result.rejected for finding in draft.findings}


@pytest.mark.promise("synthesis:questions:hops")
async def test_a_reader_that_can_not_be_asked_without_a_fact_does_not_prove_that_it_is_needed() -> None:
    def fails(request: object) -> Failure | None:
        hides = isinstance(request, EvidenceRequest) and any(
            HIDDEN in passage.text for passage in request.passages
        )
        return DOWN if hides else None

    result = await write_questions(chain(), CONFIG, roles(fails=fails), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {Check.HOPS}


@pytest.mark.promise("synthesis:questions:failures")
@pytest.mark.parametrize(
    "kind", ["ExtractionRequest", "WordingRequest", "TranslationRequest", "EvidenceRequest"]
)
async def test_a_failed_call_makes_no_pair_and_is_counted(kind: str) -> None:
    asked = roles(fails=failing_on(kind, DOWN))
    result = await write_questions(chain(), CONFIG, asked, page())
    assert result.pairs == ()
    assert result.model_failures == {"unavailable": asked.counts[kind]}


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
        {"max_question_words": 3, "max_drafts": 1},
        {"min_hops": 9},
        {"min_observations": 9, "min_hops": 3},
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
        async def word(self, request: WordingRequest) -> Reply[Wording]:
            raise RunStopped(StopCause.BUDGET, "the budget is used up")

    with pytest.raises(RunStopped, match="the budget is used up"):
        await write_questions(chain(), CONFIG, Broke(STATEMENTS), page())


@pytest.mark.promise("synthesis:questions:result")
async def test_a_result_is_read_back_unchanged_from_the_journal() -> None:
    for asked in (roles(), Careless(STATEMENTS), roles(fails=failing_on("", DOWN))):
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
async def test_a_kept_pair_costs_at_most_25_model_calls() -> None:
    asked = roles()
    result = await write_questions(chain(), CONFIG, asked, page())
    assert len(asked.asked) <= 25 * len(result.pairs)
    assert sum((used for used in result.usage.values()), Usage()).calls == len(asked.asked)
    assert len(FACTS) == asked.counts["ExtractionRequest"]
