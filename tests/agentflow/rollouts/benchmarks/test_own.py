"""Benchmarks in a file, and files of tasks."""

import json
import re
from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.rollouts.benchmarks import find_benchmark, load_tasks
from agentflow.scoring import make_metric

BIRDS = """
name: birds
path: data/birds.csv
fields: {id: key, question: q, answer: a, options: choices}
prompt: "About birds: $question\\n$choices"
metric: numeric_match
metric_options: {tolerance: 0.1}
judged: true
limit: 2
"""


@pytest.mark.promise("benchmarks:own")
async def test_a_benchmark_is_added_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = 'key,q,a,choices,region\nx1,How many?,12,"[""10"", ""12""]",north\nx2,How tall?,3 m,,\nx3,How long?,4,,\n'
    (tmp_path / "data" / "birds.csv").write_text(rows)
    description = tmp_path / "birds.yaml"
    description.write_text(BIRDS)
    tasks = load_tasks(str(description))
    assert [(task.id, task.question) for task in tasks] == [
        ("x1", "About birds: How many?\nA. 10\nB. 12"), ("x2", "About birds: How tall?"),
    ]  # fmt: skip
    assert tasks[0].metadata == {"region": "north", "options": {"A": "10", "B": "12"}}
    benchmark = find_benchmark(str(description))
    assert (benchmark.name, benchmark.category, benchmark.judged) == ("birds", "own", True)
    metric = make_metric(benchmark.metric, options=benchmark.options)
    assert (await metric.score("3.2 m", tasks[1])).score == 1.0
    assert len(load_tasks(str(description), limit=3)) == 3


@pytest.mark.promise("benchmarks:own")
def test_a_description_may_be_json_and_name_the_format(tmp_path: Path) -> None:
    (tmp_path / "tasks.txt").write_text('{"input": "Which?", "expected": "x"}\n')
    description = tmp_path / "own.json"
    description.write_text(json.dumps({"name": "own", "path": "tasks.txt", "format": "jsonl"}))
    [task] = find_benchmark(str(description)).load()
    assert (task.id, task.question, task.references) == ("own_001", "Which?", ("x",))


@pytest.mark.promise("benchmarks:own")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: birds\n", "path: Field required"),
        ("name: birds\npath: x\nmetrics: f1_score\n", "metrics: Extra inputs are not permitted"),
        ("name: birds\npath: x\nfields: {q: question}\n", "fields.q: Extra inputs"),
        ("name: birds\npath: x\nprompt: Answer!\n", "prompt: String should match pattern"),
        ("name: birds\npath: x\nlimit: 0\n", "limit: Input should be greater than"),
        ("name: birds\npath: x\nformat: xml\n", "format: String should match pattern"),
        ("- x\n", "it: Input should be a valid"),
        ("name: [\n", "own.yaml:2: not YAML"),
    ],
)
def test_an_unusable_description_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refused:
        find_benchmark(str(path))
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.promise("benchmarks:own")
def test_a_missing_description_or_task_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: no such file"):
        load_tasks(str(tmp_path / "none.yaml"))
    (tmp_path / "own.yaml").write_text("name: own\npath: none.jsonl\n")
    with pytest.raises(ConfigurationError, match=r"none\.jsonl: no such file"):
        load_tasks(str(tmp_path / "own.yaml"))


@pytest.mark.promise("benchmarks:tasks")
@pytest.mark.parametrize(
    ("row", "references"),
    [
        ({"id": "x", "question": "Which?", "answer": "a"}, ("a",)),
        ({"task_id": "x", "query": "Which?", "ground_truth": "a"}, ("a",)),
        ({"id": "x", "input": "Which?", "expected": ["a", "b", "a"]}, ("a", "b")),
        ({"id": "x", "question": "Which?", "answer": 5.0}, ("5",)),
        ({"id": "x", "question": "Which?", "answer": None}, ()),
        ({"id": "x", "question": "Which?"}, ()),
    ],
)
def test_tasks_are_read_by_the_documented_names(
    row: dict[str, object], references: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({**row, "kwargs": {"db": "birds"}, "level": 2, "metadata": {"source": "me"}}))
    [task] = load_tasks(path)
    assert (task.index, task.id, task.question, task.references) == (0, "x", "Which?", references)
    assert (task.kwargs, task.metadata) == ({"db": "birds"}, {"level": 2, "source": "me"})


@pytest.mark.promise("benchmarks:tasks")
def test_tasks_are_taken_from_the_first_on_or_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text('question,answer,kwargs\na,1,\nb,2,\nc,3,"{""k"": 1}"\n')
    assert [task.id for task in load_tasks(path)] == ["task_001", "task_002", "task_003"]
    assert [task.question for task in load_tasks(path, limit=2)] == ["a", "b"]
    [last] = load_tasks(path, ids=["task_003"])
    assert (last.question, last.index, last.kwargs) == ("c", 2, {"k": 1})
    with pytest.raises(ConfigurationError, match="there is no task x; its first is task_001"):
        load_tasks(path, ids=["x"])


@pytest.mark.promise("benchmarks:tasks")
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "kwargs": [1]}, "1: kwargs: is not an object"),
        ({"question": "a", "kwargs": "x"}, "1: kwargs: not JSON"),
        ({"question": "a", "options": 5}, "1: options: is neither"),
        ({"answer": "a"}, "1: question: is missing; add it, or input"),
    ],
)
def test_an_unusable_task_is_refused_with_line_and_field(
    row: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_tasks(path)


@pytest.mark.promise("benchmarks:tasks")
@pytest.mark.parametrize("name", ["tasks.csv", "tasks.jsonl"])
def test_only_line_feeds_end_lines(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = "a\u2028b\x0bc"
    row = (
        f"{text},1\n"
        if name.endswith("csv")
        else json.dumps({"question": text, "answer": 1}, ensure_ascii=False)
    )
    path.write_text(f"question,answer\n{row}" if name.endswith("csv") else row, encoding="utf-8")
    assert [task.question for task in load_tasks(path)] == [text]


@pytest.mark.promise("benchmarks:tasks")
def test_a_directory_is_refused_as_a_task_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a directory"):
        load_tasks(tmp_path)
