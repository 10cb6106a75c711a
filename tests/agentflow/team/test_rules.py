"""Verdicts by rule: a case for each verdict that would be `new` with the verifier off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.team import judge_by_rule
from agentflow.trace import Blob, Failure, JudgementRequest, Node, Verdict
from tests.agentflow.team._model import step, team

SEED = "Explore the Kestrel Observatory."
KNOWN = (
    "The Kestrel Observatory stands on the northern cliff of Vell. It was founded in 1871 by the lens grinder "
    "Mara Tolen, who sold two ships to pay for its great refractor, and it has kept a log of every clear night since."
)
OTHER = (
    "Mara Tolen learned her trade in the harbour town of Essen Bay, where the glass works of the Orrin family made "
    "lamps for lighthouses. Her first lens, ground at the age of nineteen, is still shown in the guild hall there."
)
FOREIGN = (
    "Sourdough needs patience: mix flour, water, salt, starter; knead gently, rest overnight, shape loaves, bake hot. "
    "Steam makes crust crackle. Rye ferments faster than wheat. Bakers weigh ingredients, never measure cups. "
    "Hydration decides crumb; oven temperature decides colour."
)
CHINESE = "红隼天文台位于北部悬崖之上,由磨镜师马拉于一八七一年创建,至今仍保存着每一个晴朗夜晚的观测记录。"


def request(
    observation: str, *path: Node, failure: Failure | None = None, trouble: str = "", **more: bool
) -> JudgementRequest:
    judged = step(observation, failure=failure, trouble=trouble)
    return JudgementRequest(seed=SEED, path=path, step=judged, **more)


def verdict(observation: str, *path: Node, **flags: bool) -> Verdict:
    return judge_by_rule(request(observation, *path, failure=None, trouble="", **flags)).verdict


CASES = {
    Verdict.NEW: request(KNOWN, step(OTHER)),
    Verdict.REPEATS: request(KNOWN, step(KNOWN)),
    Verdict.EMPTY: request("no hits"),
    Verdict.ERROR: request("", failure=Failure("timeout", "too slow")),
    Verdict.OFF_TOPIC: request(FOREIGN, step(KNOWN)),
}


@pytest.mark.promise("team:verifier:off")
@pytest.mark.parametrize("expected", CASES)
async def test_every_verdict_is_possible_and_with_the_verifier_off_everything_is_new(
    expected: Verdict,
) -> None:
    async with team() as (members, _):
        reply = await members.verifier.judge(CASES[expected])
        assert reply.value is not None
        assert reply.value.verdict is expected
    async with team(verify="off") as (members, _):
        reply = await members.verifier.judge(CASES[expected])
        assert reply.value is not None
        assert reply.value.verdict is Verdict.NEW


@pytest.mark.promise("team:verifier:error")
def test_failures_and_trouble_are_errors_with_their_reason() -> None:
    failed = judge_by_rule(request(KNOWN, failure=Failure("timeout", "too slow")))
    assert (failed.verdict, failed.reason) == (Verdict.ERROR, "timeout: too slow")
    troubled = judge_by_rule(request(KNOWN, trouble="exit code 2"))
    assert (troubled.verdict, troubled.reason) == (Verdict.ERROR, "exit code 2")


@pytest.mark.promise("team:verifier:empty")
@pytest.mark.parametrize(
    "text",
    ["", " \n\t", "[]", "{}", "…", "—", "None", "null", "no hits", "No results found.", "0 results", "nothing found",
     "No matching documents", "no matches", "There are no results.", "hits: none\ntables: none", "not found", "N/A"],
)  # fmt: skip
def test_text_without_information_is_empty(text: str) -> None:
    assert verdict(text) is Verdict.EMPTY


@pytest.mark.promise("team:verifier:empty")
@pytest.mark.parametrize(
    "text",
    ["0", "7", "no", "the note", "Nothing was found in the harbour but a lamp", "No results of the vote are kept",
     "灯", "None of them", "hits: none\ntotal: 7"],
)  # fmt: skip
def test_text_with_information_is_not_empty(text: str) -> None:
    assert verdict(text) is Verdict.NEW


@pytest.mark.promise("team:verifier:empty")
def test_an_image_without_text_is_not_empty() -> None:
    shown = JudgementRequest(seed=SEED, path=(), step=step("", images=(Blob("ab", "image/png"),)))
    assert judge_by_rule(shown).verdict is Verdict.NEW
    again = JudgementRequest(seed=SEED, path=(shown.step,), step=shown.step)
    assert judge_by_rule(again).verdict is Verdict.REPEATS


@pytest.mark.promise("team:verifier:repeats")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        (KNOWN, (KNOWN,)),
        (KNOWN.upper().replace(" ", "\n  "), (OTHER, KNOWN)),
        (KNOWN + " Yes.", (OTHER, KNOWN)),
        (OTHER + "\n\n" + KNOWN, (KNOWN, OTHER)),
        ("42", ("42",)),
        ("It is 42.", ("it is 42",)),
        (CHINESE, (CHINESE + "它有一台大折射望远镜。",)),
        ("ＦＵＬＬ ｗｉｄｔｈ 42", ("full width 42",)),
    ],
)
def test_text_contained_in_the_path_repeats(text: str, path: tuple[str, ...]) -> None:
    assert verdict(text, *map(step, path)) is Verdict.REPEATS


@pytest.mark.promise("team:verifier:new")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        (KNOWN, ()),
        (KNOWN, (OTHER,)),
        (KNOWN + " " + OTHER, (KNOWN,)),
        ("42", ("420",)),
        ("5", ("50",)),
        ("It is 43.", ("It is 42.",)),
        (CHINESE, (KNOWN,)),
        ("她的第一块透镜仍然陈列在行会大厅里,每年吸引许多访客。", (CHINESE,)),
    ],
)
def test_text_not_contained_in_the_path_is_new(text: str, path: tuple[str, ...]) -> None:
    assert verdict(text, *map(step, path)) is Verdict.NEW


@pytest.mark.promise("team:verifier:repeats")
def test_text_returned_by_another_node_repeats() -> None:
    assert verdict(KNOWN, seen_elsewhere=True) is Verdict.REPEATS


@pytest.mark.promise("team:verifier:off-topic")
def test_long_text_without_shared_content_words_is_off_topic_unless_its_tool_computes() -> None:
    assert verdict(FOREIGN) is Verdict.OFF_TOPIC
    assert verdict(FOREIGN, step(OTHER)) is Verdict.OFF_TOPIC
    assert verdict(FOREIGN, computes=True) is Verdict.NEW
    assert verdict(" ".join(FOREIGN.split()[:12])) is Verdict.NEW
    assert verdict(FOREIGN + " So say the kestrels.") is Verdict.NEW
    assert verdict(FOREIGN, step(KNOWN, intent="What do bakers eat there?")) is Verdict.NEW
    assert verdict(CHINESE, step(KNOWN)) is Verdict.NEW


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from([*KNOWN.split(), *FOREIGN.split(), "红隼", "42"]), max_size=80).map(" ".join),
)


@pytest.mark.promise("team:verifier:repeats")
@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_an_observation_of_the_path_is_never_new(text: str, others: list[str]) -> None:
    path = [step(each) for each in (*others, text)]
    assert verdict(text, *path) in (Verdict.REPEATS, Verdict.EMPTY)


@pytest.mark.promise("team:verifier:new")
@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_a_verdict_has_a_reason_and_a_longer_path_never_makes_a_repeated_text_new(
    text: str, others: list[str]
) -> None:
    path = [step(each) for each in others]
    few, all_of_it = judge_by_rule(request(text, *path[:-1])), judge_by_rule(request(text, *path))
    assert bool(few.reason) == (few.verdict is not Verdict.NEW)
    if few.verdict is Verdict.REPEATS:
        assert all_of_it.verdict is Verdict.REPEATS
