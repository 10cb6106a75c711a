"""Metrics and judges that fail: reported with their error, and never taken for wrong answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.errors import RunStopped, StopCause
from agentflow.rollouts import RESULTS, RolloutConfig
from tests.agentflow.models._serving import refuses, says, script
from tests.agentflow.rollouts import _rewards
from tests.agentflow.rollouts._rollouts import config_for, lines, run_to_the_end, some_tasks
from tests.agentflow.runs._outages import unsteady_endpoint

REWARD = f"{_rewards.__name__}:close"


@pytest.fixture
def broken() -> Iterator[set[str]]:
    """Tasks for which the reward is broken."""
    yield _rewards.broken
    _rewards.broken.clear()


def rewarded(folder: Path, **settings: object) -> RolloutConfig:
    return config_for(folder, evaluation_metric=REWARD, **settings)


@pytest.mark.promise("rollout:broken-score")
async def test_a_reward_that_always_fails_leaves_its_tasks_for_the_same_command(
    tmp_path: Path, broken: set[str]
) -> None:
    broken.update(task.id for task in some_tasks(4))
    with pytest.raises(RunStopped) as stopped:
        await run_to_the_end(rewarded(tmp_path))
    assert stopped.value.cause is StopCause.SCORING
    assert stopped.value.message.startswith(f"4 of 4 tasks are left: {REWARD} can't score the answer to q")
    assert "KeyError: 'answer q" in stopped.value.message
    assert "run the same command again" in stopped.value.message
    assert lines(tmp_path, RESULTS) == []
    broken.clear()
    _, summary = await run_to_the_end(rewarded(tmp_path))
    assert (summary.results, summary.unjudged, summary.score) == (4, 0, 1.0)


@pytest.mark.promise("rollout:broken-score")
async def test_a_rollout_ends_when_eight_scores_have_failed_in_the_same_way(
    tmp_path: Path, broken: set[str]
) -> None:
    broken.update(task.id for task in some_tasks(40))
    with pytest.raises(RunStopped) as stopped:
        await run_to_the_end(rewarded(tmp_path, max_workers=1), some_tasks(40))
    assert stopped.value.message == (
        f"40 of 40 tasks are left: {REWARD} can't score the answer to q8: KeyError: 'answer q8'; it has failed on all 8 "
        "answers so far: fix it, then run the same command to resume; the answers are kept"
    )


@pytest.mark.promise("rollout:broken-score")
@pytest.mark.parametrize("first", ["q1", "q2"])
def test_a_reward_that_fails_on_one_answer_is_named_first_and_left_out_of_the_mean(
    first: str, tmp_path: Path, broken: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    broken.add(first)
    tasks = tmp_path / "tasks.jsonl"
    rows = [f'{{"id": "q{n}", "question": "When was Needle Light built?", "answer": "1834"}}' for n in (1, 2)]
    tasks.write_text("\n".join(rows), encoding="utf-8")
    words = [
        f"--data={tasks}",
        f"evaluation_metric={REWARD}",
        "max_workers=1",
        f"output_dir={tmp_path / 'out'}",
    ]
    assert main(["rollout", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"not scored 1 of 2 answers, first {first}: {REWARD}: KeyError: 'answer {first}'")
    [failed] = [line for line in lines(tmp_path / "out", RESULTS) if line["task_id"] == first]
    assert "KeyError" in failed["not_judged"]["message"]


@pytest.mark.promise("rollout:broken-score")
@pytest.mark.parametrize("refused", [True, False], ids=["refuses", "prose"])
async def test_a_judge_that_never_judges_ends_the_rollout_and_no_answer_counts_as_wrong(
    refused: bool, tmp_path: Path
) -> None:
    move = refuses(400, "no such parameter") if refused else says("I would say it is right.")
    async with script(move) as judge, unsteady_endpoint() as endpoint:
        config = config_for(
            tmp_path, model_name="fake", base_url=endpoint.url, agent="single", max_workers=1,
            evaluation_metric="llm_judgement", evaluator_model_name="painter", evaluator_max_retries=0,
            evaluator_base_url=judge.url, available_tools=["rag_search"],
        )  # fmt: skip
        with pytest.raises(RunStopped) as stopped:
            await run_to_the_end(config, some_tasks(12))
    assert "12 of 12 tasks are left" in stopped.value.message
    assert ("refuses every call" if refused else "llm_judgement can't score") in stopped.value.message
    assert lines(tmp_path, RESULTS) == []
