"""A training takes its tasks from a reader, in one text or a section."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig, TrainRun, load_train_config
from agentflow.learner._run import read_tasks_of
from agentflow.readers import read_tasks
from agentflow.runs import run_sync


def config_of(**sections: Any) -> TrainConfig:  # noqa: ANN401 - sections of settings
    schedule: Any = {"episodes_per_task": 1, "tasks_per_step": 2}
    return TrainConfig(backbone="debug", schedule=schedule, **sections)


@pytest.mark.promise("readers:training")
async def test_a_training_reads_and_scores_the_tasks_of_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    await TrainRun(config_of(tasks={"data_path": "reasoning_gym:gcd?size=1&seed=1"}), say=said.append).run()
    # The offline engine does not know the answers, and the library's scorer gives no credit for nothing.
    assert [line for line in said if line.startswith("task gcd/1/")]
    assert sum(line.startswith("    reward: 0") for line in said) == 1


@pytest.mark.promise("readers:training")
def test_a_section_has_columns_and_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"n": number, "q": "What is 2 + 2?", "a": "4"} for number in range(3)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {
        "source": "rows.jsonl",
        "columns": {"id": "n", "question": "q", "answer": "a"},
        "filters": ["near_duplicates"],
    }
    tasks = run_sync(read_tasks_of, config_of(tasks={"reader": section}), "training", None)
    assert tasks is not None and [task.id for task in tasks] == ["0"]
    assert run_sync(read_tasks_of, config_of(tasks={"data_path": "rows.jsonl"}), "training", None) is None


@pytest.mark.promise("readers:training")
def test_two_sources_or_a_misspelled_setting_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = [
        (["tasks.reader=a.jsonl", "tasks.data_path=b.jsonl"], "tasks.reader: there is another source"),
        (
            ["validation.reader={source: a.jsonl, filter: []}"],
            "validation.reader.filter is unknown; did you mean filters",
        ),
        (["tasks.reader={source: a.jsonl, limit: 0}"], "tasks.reader.limit"),
    ]
    for words, message in refused:
        with pytest.raises(ConfigurationError) as caught:
            load_train_config(overrides=["policy.model=m", *words])
        assert message in str(caught.value) and "\n" not in str(caught.value)
    reader = load_train_config(
        overrides=["policy.model=m", "tasks.reader=textarena:TicTacToe-v0?size=3"]
    ).tasks.reader
    assert reader is not None and reader.source == "textarena:TicTacToe-v0?size=3"


@pytest.mark.promise("readers:rollout")
def test_a_rollout_works_on_the_tasks_of_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["rollout", "--data", "reasoning_gym:gcd?size=3&seed=1", "number_of_tasks=1", "output_dir=out"])
        == 0
    )
    capsys.readouterr()
    (line,) = Path("out/results.jsonl").read_text().splitlines()
    result = json.loads(line)
    assert (result["task_id"], result["score"] is not None) == ("gcd/1/0", True)
    # What it did are tasks again.
    (task,) = read_tasks("traces:out")
    assert task.metadata["pass_rate"] == 0.0 and task.references == ("1",)
    assert main(["rollout", "--data", "reasoning_gym:gdc", "output_dir=other"]) == 2
    assert "there is no such data set; did you mean gcd" in capsys.readouterr().err
