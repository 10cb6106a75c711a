"""From selected paths to pairs: tries, reasons, what is too easy, and nothing asked twice."""

from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind, RunStopped, StopCause
from agentflow.journal import Page, Writing
from agentflow.synthesis import SeedResult, SynthesisConfig, write_questions
from agentflow.synthesis._checks import Check, Grounding
from agentflow.trajectory import (
    Citation,
    Draft,
    Example,
    Failure,
    Judgement,
    Node,
    Plan,
    Reply,
    Usage,
    WriteRequest,
)
from tests._pages import written
from tests.agentflow.synthesis._grown import FACTS, GOOD, SEED, Scripted, chain, page, tree

LEAKS = replace(GOOD, question="Who is Jorun Pike?")
CONFIG = SynthesisConfig()
DOWN = Failure(ModelFailureKind.UNAVAILABLE, "no answer")


@pytest.mark.promise("synthesis:questions:pair")
async def test_a_good_draft_becomes_a_pair_whose_citations_are_spans_of_the_observations() -> None:
    generator = Scripted(GOOD)
    grown = chain()
    result = await write_questions(grown, CONFIG, generator, page())
    (pair,) = result.pairs
    assert (pair.question, pair.answer, pair.tries, pair.engine) == (GOOD.question, GOOD.answer, 1, "offline")
    assert (pair.grounding, pair.hops, pair.answerable) == (Grounding.QUOTED, 3, False)
    assert pair.id == f"{result.trajectories[0].id}_qa_0"
    for step, drafted in zip(pair.reasoning_steps, GOOD.steps, strict=True):
        assert step.step == drafted.step
        for citing in step.citations:
            assert grown.by_id[citing.node_id].observation.text[citing.start : citing.end] == citing.quote
    assert result.usage == {"generator": Usage(2, 120, 12)}
    assert (len(generator.written), len(generator.answered)) == (1, 1)


@pytest.mark.promise("synthesis:questions:request")
async def test_the_generator_gets_the_texts_of_the_settings() -> None:
    config = SynthesisConfig(
        seed_description="ports",
        synthesis_tips="ask why",
        qa_examples=[{"question": "Who?", "answer": "Ada"}],
    )
    generator = Scripted(GOOD)
    await write_questions(chain(), config, generator, page())
    (request,) = generator.written
    assert (request.seed, request.seed_description, request.tips) == (SEED.content, "ports", "ask why")
    assert request.examples == (Example("Who?", "Ada"),)
    assert tuple(step.observation for step in request.evidence) == FACTS


@pytest.mark.promise("synthesis:questions:tries")
async def test_the_generator_gets_the_reason_of_a_rejection() -> None:
    generator = Scripted(LEAKS, GOOD)
    result = await write_questions(chain(), CONFIG, generator, page())
    assert [pair.tries for pair in result.pairs] == [2]
    assert [finding.check for finding in result.rejected[0].findings] == [Check.LEAKAGE]
    told = generator.written[1].rejected
    assert [one.draft for one in told] == [LEAKS]
    assert told[0].reasons == ("the question contains its answer, Jorun Pike",)


@pytest.mark.promise("synthesis:questions:tries")
@pytest.mark.parametrize("most", [1, 3])
async def test_a_question_is_tried_at_most_the_configured_number_of_times(most: int) -> None:
    generator = Scripted(LEAKS)
    result = await write_questions(chain(), SynthesisConfig(max_drafts=most), generator, page())
    assert result.pairs == ()
    assert [one.number for one in result.rejected] == list(range(1, most + 1))
    assert len(generator.written) == most
    assert generator.answered == []


@pytest.mark.promise("synthesis:questions:too-easy")
@pytest.mark.parametrize("known", ["jorun pike", "Jorun Pike.", "  Jorun  Pike"])
async def test_a_question_answered_without_the_path_is_rejected_and_counts_as_a_draft(known: str) -> None:
    generator = Scripted(GOOD, knows=lambda _: known)
    result = await write_questions(chain(), CONFIG, generator, page())
    assert result.pairs == ()
    assert [finding.check for one in result.rejected for finding in one.findings] == [Check.TOO_EASY] * 3
    assert len(generator.answered) == 3


@pytest.mark.promise("synthesis:questions:too-easy")
async def test_the_check_by_answering_back_can_be_disabled() -> None:
    generator = Scripted(GOOD, knows=lambda _: "Jorun Pike")
    result = await write_questions(chain(), SynthesisConfig(check_answerability=False), generator, page())
    assert [pair.answerable for pair in result.pairs] == [None]
    assert generator.answered == []


@pytest.mark.promise("synthesis:questions:failures")
async def test_a_failed_call_counts_as_an_attempt() -> None:
    result = await write_questions(chain(), CONFIG, Scripted(DOWN), page())
    assert (result.pairs, result.rejected) == ((), ())
    assert result.model_failures == {"unavailable": 3}
    unknown = await write_questions(chain(), CONFIG, Scripted(GOOD, knows=lambda _: DOWN), page())
    assert [pair.answerable for pair in unknown.pairs] == [None]
    assert unknown.model_failures == {"unavailable": 1}


@pytest.mark.promise("synthesis:questions:failures")
async def test_failed_calls_of_growth_are_counted_too() -> None:
    failed = {
        "plan/0/1": msgspec.json.encode(Reply[Plan](failure=DOWN)),
        "node/0": msgspec.json.encode(Reply[Judgement](failure=DOWN)),
    }
    result = await write_questions(chain(), CONFIG, Scripted(GOOD), page({**failed, "act/0": b"true"}))
    assert result.model_failures == {"unavailable": 2}


@pytest.mark.promise("synthesis:questions:settings")
@pytest.mark.parametrize(
    "config",
    [SynthesisConfig(min_reasoning_steps=4), SynthesisConfig(max_question_words=5)],
)
async def test_the_settings_of_the_checks_take_effect(config: SynthesisConfig) -> None:
    assert (await write_questions(chain(), config, Scripted(GOOD), page())).pairs == ()


@pytest.mark.promise("synthesis:questions:engine")
async def test_a_pair_names_the_model_that_wrote_it() -> None:
    config = SynthesisConfig.model_validate({"model_name": "big", "generator_model": {"model_name": "own"}})
    result = await write_questions(chain(), config, Scripted(GOOD), page())
    assert [pair.engine for pair in result.pairs] == ["own"]


class Forest(Scripted):
    """Writes a good draft about any path of one fact per node."""

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """A draft about that path."""
        self.written.append(request)
        steps = tuple(
            replace(step, citations=(Citation(number, request.evidence[number - 1].observation),))
            for number, step in zip((1, 2, 2), GOOD.steps, strict=True)
        )
        answer = request.evidence[-1].observation.split()[-1]
        return Reply(
            Draft(f"Who came to {request.evidence[0].observation}?", answer, steps), usage=Usage(1, 1, 1)
        )


FOREST: dict[tuple[int, ...], str | Node] = {
    (a, *rest): f"port{a} fact{a}{len(rest)}" for a in range(3) for rest in ((), (0,))
}


@pytest.mark.promise("synthesis:questions:resume")
async def test_recorded_calls_are_not_repeated_after_an_interruption_at_any_point() -> None:
    grown = tree(FOREST)
    whole = page()
    undisturbed = await write_questions(grown, CONFIG, Forest(), whole)
    assert len(undisturbed.pairs) == 3
    kept: dict[str, bytes] = {}

    async def write(room: list[int], key: str, body: bytes) -> Writing:
        if not room:
            raise RunStopped(StopCause.JOURNAL, "the disk is full")
        room.pop()
        kept[key] = body
        return written()

    stops = 0
    for _ in range(10):
        try:
            result = await write_questions(grown, CONFIG, Forest(), Page(kept, partial(write, [1])))
        except RunStopped:
            stops += 1
            continue
        assert result == undisturbed
        break
    else:
        pytest.fail("it never ended")
    assert stops == 5
    assert kept.keys() == set(whole.keys())


@pytest.mark.promise("synthesis:questions:resume")
async def test_the_keys_on_the_page_name_path_and_try() -> None:
    whole = page()
    result = await write_questions(chain(), CONFIG, Scripted(LEAKS, GOOD), whole)
    own = result.trajectories[0].id
    assert list(whole.keys()) == [f"write/{own}/1", f"write/{own}/2", f"answer/{own}/2"]


@pytest.mark.promise("synthesis:questions:stopped")
async def test_run_stopped_is_raised_unchanged() -> None:
    class Broke(Scripted):
        async def write(self, request: WriteRequest) -> Reply[Draft]:
            raise RunStopped(StopCause.BUDGET, "the budget is used up")

    with pytest.raises(RunStopped, match="the budget is used up"):
        await write_questions(tree(FOREST), CONFIG, Broke(), page())


@pytest.mark.promise("synthesis:questions:result")
async def test_a_harvest_is_read_back_unchanged_from_the_journal() -> None:
    for generator in (Scripted(LEAKS, GOOD), Scripted(LEAKS), Scripted(DOWN)):
        before = await write_questions(chain(), CONFIG, generator, page())
        again = msgspec.json.decode(msgspec.json.encode(before), type=SeedResult)
        assert again == before
    failed = SeedResult(failure="no sandbox")
    assert msgspec.json.decode(msgspec.json.encode(failed), type=SeedResult) == failed


@pytest.mark.promise("synthesis:questions:result")
async def test_a_tree_without_a_path_makes_no_call() -> None:
    generator = Scripted(GOOD)
    result = await write_questions(tree({}), CONFIG, generator, page())
    assert (result.trajectories, result.pairs, result.usage) == ((), (), {})
    assert result.left_out == {"no evidence": 1}
    assert generator.written == []
