"""Reward for the documents that an episode reads, from tasks to steps."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from agentflow import train
from agentflow.errors import ConfigurationError
from agentflow.learner import EvidenceSettings, TaskDraw
from agentflow.learner._config import ValidationSettings
from agentflow.learner._group_rollout import GroupRollout, GroupSettings, Validation
from agentflow.learner._groups import Batch, batch_figures
from agentflow.rollouts.benchmarks import load_tasks
from agentflow.scoring import Metric, OwnMetric
from agentflow.trace import Episode, Failure, Task, needed_documents
from agentflow.tuner import load_tune_config
from tests.agentflow.exports._trees import rows, synthesise
from tests.agentflow.learner._training import an_episode, is_yes
from tests.agentflow.scoring._reading import episode_of, get


class Readers:
    """Plays episodes that have read given documents: of each task, one after the other."""

    metric: Metric = OwnMetric("reward", is_yes)

    def __init__(self, *episodes: tuple[str, Episode]) -> None:
        self._episodes = list(episodes)

    async def play(
        self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
    ) -> Episode:
        """Return the next episode, with this answer; none: it failed to answer."""
        del temperature, max_turns
        await anyio.lowlevel.checkpoint()
        answer, read = self._episodes.pop(0)
        episode = an_episode(task, seed, answer=answer)
        failure = None if answer else Failure("failed", "no answer")
        return structs.replace(episode, turns=read.turns, failure=failure)


def task_of(documents: Sequence[str], number: int = 0) -> Task:
    """Return a task with the right answer `yes`."""
    return Task(
        index=number,
        id=f"t{number}",
        question=f"What is {number}?",
        references=("yes",),
        metadata={"documents": list(documents)} if documents else {},
    )


def rollout_of(*episodes: tuple[str, Episode], evidence: EvidenceSettings | None) -> GroupRollout:
    """Return the rollout of these episodes, one at a time."""
    settings = GroupSettings(trained=("planner",), temperature=1.0, at_once=1, evidence=evidence)
    return GroupRollout(Readers(*episodes), settings)


@pytest.mark.promise("training:evidence")
async def test_samples_are_rewarded_for_the_documents_they_read_and_keep_the_score_of_their_answers() -> None:
    needed = ["needle-light", "ossel"]
    half = await episode_of([get("ossel")], needed)
    evidence = EvidenceSettings(weight=0.5)
    rollout = rollout_of(("yes", half), ("no", half), ("", half), evidence=evidence)
    group = await rollout.group(TaskDraw(0, task_of(needed)), 3)
    rewards = [sample.reward for sample in group.samples]
    assert rewards == [pytest.approx(1 + 0.5 * 5 / 9), pytest.approx(0.05 * 5 / 9), 0.0]
    assert [sample.details["answer_score"] for sample in group.samples] == [1.0, 0.0, 0.0]
    assert [sample.details["evidence"] for sample in group.samples] == [5 / 9] * 3


@pytest.mark.promise("training:evidence")
async def test_tasks_without_documents_have_the_reward_of_their_answer_and_no_figure() -> None:
    read = await episode_of([get("ossel")], ["ossel"])
    rollout = rollout_of(("yes", read), ("yes", read), evidence=EvidenceSettings())
    groups = [
        await rollout.group(TaskDraw(number, task_of(documents, number)), 1)
        for number, documents in enumerate(([], ["ossel"]))
    ]
    assert [sample.reward for group in groups for sample in group.samples] == [1.0, 2.0]
    figures = batch_figures(Batch(step=1, version=0, taken=2, groups=tuple(groups)))
    assert (figures["episodes/evidence"], figures["episodes/answer_score"]) == (1.0, 1.0)


@pytest.mark.promise("training:evidence")
async def test_without_the_setting_evidence_is_a_figure_and_no_reward() -> None:
    half = await episode_of([get("ossel")], ["needle-light", "ossel"])
    rollout = rollout_of(("yes", half), evidence=None)
    [sample] = (await rollout.group(TaskDraw(0, task_of(["needle-light", "ossel"])), 1)).samples
    assert (sample.reward, sample.details["evidence"]) == (1.0, 5 / 9)
    assert "answer_score" not in sample.details


@pytest.mark.promise("training:evidence")
async def test_a_validation_scores_answers_and_reports_evidence_beside_them() -> None:
    needed = ["needle-light", "ossel"]
    half = await episode_of([get("ossel")], needed)
    rollout = rollout_of(("yes", half), ("no", half), evidence=EvidenceSettings())
    validation = Validation(rollout, [task_of(needed)], ValidationSettings(samples=2))
    figures = await validation.score()
    assert (figures["validation/score"], figures["validation/pass@2"]) == (0.5, 1.0)
    assert figures["validation/evidence"] == 5 / 9
    assert figures["validation/turns"] == 1.0


@pytest.mark.promise("training:evidence")
def test_the_pairs_of_a_synthesis_are_tasks_whose_documents_are_rewarded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = synthesise(tmp_path) / "synthesized_qa.jsonl"
    tasks = load_tasks(pairs)
    needed = [[document.id for document in needed_documents(task)] for task in tasks]
    written = [row["metadata"]["documents"] for row in rows(pairs)]
    assert needed == [[document["id"] for document in documents] for documents in written]
    assert all(needed)
    capsys.readouterr()
    run = partial(train, None, backbone="debug", schedule={"tasks_per_step": 4, "episodes_per_task": 1})
    plain, rewarded = (
        run({"data_path": str(pairs), "evidence": evidence})["figures"]["reward/mean"]
        for evidence in (None, {"weight": 1.0})
    )
    assert plain < rewarded <= 2 * plain + 0.1
    assert "evidence " in capsys.readouterr().out


@pytest.mark.promise("training:evidence:refused")
@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (None, "tasks.evidence: no task names the documents that it needs; add a field `documents`"),
        ([], "tasks.evidence: no task names the documents"),
        ([{"id": "q", "computed": True}], "tasks.evidence: no task names the documents"),
        ("ossel", "tasks: task a: documents: Expected `array`, got `str`; list ids, or objects with an id"),
        ([3], "tasks: task a: documents: Expected `str | object`, got `int` - at `$[0]`"),
        ([""], "tasks: task a: documents: Expected `str` of length >= 1 - at `$[0]`"),
        ([{"title": "Ossel"}], "tasks: task a: documents: Object missing required field `id` - at `$[0]`"),
        ([{"id": "a", "copies": [1]}], "tasks: task a: documents: Expected `str`, got `int`"),
    ],
    ids=repr,
)
def test_tasks_that_do_not_name_their_documents_are_refused_in_one_line(
    documents: object, message: str, tmp_path: Path
) -> None:
    row: dict[str, Any] = {"id": "a", "question": "When was Needle Light built?", "answer": "1834"}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row | ({} if documents is None else {"documents": documents})) + "\n")
    with pytest.raises(ConfigurationError) as raised:
        train(None, {"data_path": str(path), "evidence": {}}, backbone="debug")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    # Without the setting the field is any other one.
    train(None, path, backbone="debug", schedule={"tasks_per_step": 1, "episodes_per_task": 1})


@pytest.mark.promise("training:evidence:refused")
def test_agents_of_which_nothing_tells_what_they_read_are_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigurationError, match=r"tasks\.evidence: the documents that this agent's tools show"
    ):
        load_tune_config(overrides=["solve=agent.py:solve", "tasks.evidence.weight=1"])
    assert load_tune_config(overrides=["solve=team", "tasks.evidence.weight=1"]).tasks.evidence is not None


@pytest.mark.promise("training:evidence:refused")
@pytest.mark.parametrize(
    "setting", ["weight=0", "weight=.inf", "beta=0", "beta=.nan", "unconditional=1.5", "alpha=1"]
)
def test_values_that_make_no_reward_are_refused_in_one_line(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"tasks\.evidence\.{setting.partition('=')[0]}") as raised:
        load_tune_config(overrides=["solve=team", f"tasks.evidence.{setting}"])
    assert "\n" not in str(raised.value)
