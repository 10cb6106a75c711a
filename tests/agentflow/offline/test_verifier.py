"""The offline verifier."""

import pytest

from agentflow.offline._engine import judge
from agentflow.trace import Action, Blob, Failure, JudgementRequest, Verdict
from tests.agentflow.trace._steps import seen_step

SEARCH = Action("rag_search", {"query": "Alba"})
KNOWN = seen_step("look", SEARCH, "Alba is a port with fourteen bells and a slate quay.")


def verdict(
    observation: str,
    *,
    failure: Failure | None = None,
    trouble: str = "",
    seen_elsewhere: bool = False,
    computes: bool = False,
) -> Verdict:
    request = JudgementRequest(
        seed="Explore Alba",
        path=(KNOWN,),
        step=seen_step("look", SEARCH, observation, failure=failure, trouble=trouble),
        seen_elsewhere=seen_elsewhere,
        computes=computes,
    )
    return judge(request).verdict


@pytest.mark.promise("offline:verdicts")
def test_an_observation_with_new_content_is_new() -> None:
    assert verdict("Alba was founded by quarrymen from the southern valleys.") is Verdict.NEW


@pytest.mark.promise("offline:verdicts")
def test_a_failed_call_is_an_error_with_any_output() -> None:
    assert verdict("Alba was founded by quarrymen.", failure=Failure("timeout", "too slow")) is Verdict.ERROR
    assert verdict("Alba was founded by quarrymen.", trouble="exit code 2") is Verdict.ERROR


@pytest.mark.promise("offline:verdicts")
@pytest.mark.parametrize("observation", ["", "  \n", "…", "[]", "---"])
def test_an_observation_without_text_is_empty(observation: str) -> None:
    assert verdict(observation) is Verdict.EMPTY


@pytest.mark.promise("offline:verdicts")
def test_an_image_without_text_is_not_empty() -> None:
    step = seen_step("look", SEARCH, "", images=(Blob("0", "image/png"),))
    assert judge(JudgementRequest(seed="Explore Alba", path=(), step=step)).verdict is Verdict.NEW


@pytest.mark.promise("offline:verdicts")
def test_an_observation_known_to_the_path_or_tree_is_a_repetition() -> None:
    assert verdict("A slate quay and fourteen bells: Alba is a port.") is Verdict.REPEATS
    assert verdict("Alba was founded by quarrymen.", seen_elsewhere=True) is Verdict.REPEATS


@pytest.mark.promise("offline:verdicts")
def test_an_observation_without_common_words_is_off_topic_unless_computed() -> None:
    strange = "Photosynthesis turns carbon dioxide into sugar within green leaves."
    assert verdict(strange) is Verdict.OFF_TOPIC
    assert verdict(strange, computes=True) is Verdict.NEW
    assert verdict("Sugar 42") is Verdict.NEW
