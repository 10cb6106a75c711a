"""The ten benchmarks: their samples, formats, prompts and scorers."""

import csv
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ConfigurationError
from agentflow.rollouts import RolloutConfig, assign
from agentflow.rollouts.benchmarks import benchmark_names, find_benchmark, load_tasks
from agentflow.scoring import make_metric
from agentflow.trace import Task

RIGHT = {
    "bamboogle": "1170.",
    "2wiki": "1781",
    "hotpotqa": "the Tollen Quay",
    "musique": "the Emberlee Library",
    "gaia": "8",
    "aime24": r"\boxed{040}",
    "amc23": "12/2",
    "gameof24": "4*3*2*1",
    "gpqa": "The answer is (B)",
    "medqa": "Vitamin C",
}
LIMITS = {
    "bamboogle": 125, "2wiki": 100, "hotpotqa": 100, "musique": 100, "gaia": 127, "aime24": 30, "amc23": 40,
    "gameof24": 100, "gpqa": 100, "medqa": 100,
}  # fmt: skip
OPEN: dict[str, Any] = {
    "question": "Which city?",
    "answer": "['Paris', \"Old Town\"]",
    "query": "long",
    "image": None,
}
CHOICE: dict[str, Any] = {"question": "Which?", "options": {"A": "x", "B": "y"}}

FORMATS: list[tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
    ("bamboogle", {"Question": "Which city?", "Answer": "Paris"}, ("Paris",), {}),
    ("bamboogle", {"idx": 3, "pid": "3", "gen_text_store": "", **OPEN}, ("Paris", "Old Town"), {}),
    ("bamboogle", {"id": "t_0", "question": "Which city?", "golden_answers": ["Paris"]}, ("Paris",), {}),
    ("2wiki", {"query": "Which city?", "image": None, "answer": "Paris", "pid": 7}, ("Paris",), {}),
    ("2wiki", {"_id": "a", "type": "comparison", "question": "Which city?", "context": [["x", ["y"]]], "evidences": [], "answer": "Paris"}, ("Paris",), {"type": "comparison"}),
    ("hotpotqa", {"id": "b", "question": "Which city?", "answer": "Paris", "type": "bridge", "level": "hard", "supporting_facts": {"title": []}}, ("Paris",), {"type": "bridge", "level": "hard"}),
    ("musique", {"id": "2hop__1", "paragraphs": [], "question": "Which city?", "answer": "Paris", "answer_aliases": ["Lutetia"], "answerable": True}, ("Paris", "Lutetia"), {}),
    ("musique", {"query": "Which city?", "answer": "Paris", "pid": "1"}, ("Paris",), {}),
    ("gaia", {"task_id": "c", "Question": "Which city?", "Level": "2", "Final answer": "Paris", "file_name": "", "Annotator Metadata": {"Steps": "1"}}, ("Paris",), {"level": 2}),
    ("gaia", {"pid": 0, "question": "Which city?", "answer": "Paris", "query": "long", "task_id": "c", "Level": 1}, ("Paris",), {"level": 1}),
    ("gaia", {"task_id": "c", "Question": "Which city?", "Level": 3, "Final answer": "?"}, (), {"level": 3}),
    ("aime24", {"ID": "2024-I-1", "Problem": "Which city?", "Solution": "long", "Answer": 25}, ("25",), {}),
    ("aime24", {"id": 60, "problem": "Which city?", "solution": "long", "answer": "025", "url": "", "year": "2024"}, ("25",), {}),
    ("aime24", {"id": 60, "problem": "Which city?", "solution": r"so it is \boxed{025}", "url": ""}, ("25",), {}),
    ("amc23", {"id": 0, "question": "Which city?", "answer": 27.0, "url": ""}, ("27",), {}),
    ("amc23", {"pid": 0, "question": "Which city?", "answer": r"\frac{1}{2}", "image": None, "query": "long"}, (r"\frac{1}{2}",), {}),
    ("gameof24", {"Rank": 901, "Puzzles": "1 4 6 11", "AMT (s)": "4"}, (), {"numbers": [1, 4, 6, 11]}),
    ("gameof24", {"pid": 1, "question": "Make 24 from 1, 4, 6 and 11.", "answer": "['(6-4)*(11+1)', '(6 - 4) * (1 + 11)']"}, ("(6-4)*(11+1)", "(6 - 4) * (1 + 11)"), {"numbers": [1, 4, 6, 11]}),
    ("gameof24", {"pid": 1, "question": "Solve it.", "answer": "(6-4)*(11+1) = 24"}, ("(6-4)*(11+1) = 24",), {"numbers": [6, 4, 11, 1]}),
    ("gpqa", {"pid": 1, "question": "Which?", "choices": ["0.9", "1.2"], "answer_idx": 0, "answer": "A. 0.9"}, ("A",), {"options": {"A": "0.9", "B": "1.2"}}),
    ("gpqa", {"question": "Which?", "choices": ["(A) 0.9", "(B) 1.2"], "answer": "B"}, ("B",), {"options": {"A": "0.9", "B": "1.2"}}),
    ("medqa", {**CHOICE, "answer": "y", "answer_idx": "B", "meta_info": "step1", "metamap_phrases": []}, ("B",), CHOICE),
    ("medqa", {"idx": 4, "question": "Which?", "options": [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}], "answer": "y"}, ("B",), CHOICE),
    ("medqa", {"id": "d", "data": {"Question": "Which?", "Options": {"A": "x", "B": "y"}, "Correct Option": "B", "Correct Answer": "y"}, "subject_name": None}, ("B",), CHOICE),
]  # fmt: skip


def write(path: Path, rows: Sequence[object]) -> Path:
    """These rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, name: str) -> list[Task]:
    return load_tasks(path, benchmark=name)


@pytest.mark.promise("benchmarks:ten")
def test_the_ten_benchmarks_have_their_kinds_and_sizes() -> None:
    known = [find_benchmark(name) for name in benchmark_names()]
    assert {each.name: each.limit for each in known} == LIMITS
    assert [each.category for each in known] == ["search"] * 4 + ["agentic"] + ["math"] * 3 + ["science"] * 2
    assert [each.judged for each in known] == [True] * 5 + [False] * 5


@pytest.mark.promise("benchmarks:ten")
@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("Bamboogle", "bamboogle"), ("2WikiMultihopQA", "2wiki"), ("HotpotQA", "hotpotqa"), ("MuSiQue", "musique"), ("GAIA", "gaia"),
        ("AIME24", "aime24"), ("AIME 2024", "aime24"), ("AMC23", "amc23"), ("Game of 24", "gameof24"), ("game-of-24", "gameof24"),
        ("GPQA", "gpqa"), ("MedQA", "medqa"),
    ],
)  # fmt: skip
def test_a_benchmark_is_found_in_any_spelling(spelt: str, name: str) -> None:
    assert find_benchmark(spelt).name == name


@pytest.mark.promise("benchmarks:ten")
def test_an_unknown_benchmark_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean hotpotqa"):
        find_benchmark("hotpotqaa")
    with pytest.raises(ConfigurationError, match="write one of bamboogle"):
        find_benchmark("zzz")


@pytest.mark.promise("benchmarks:scored")
@pytest.mark.parametrize("name", benchmark_names())
async def test_each_benchmark_has_samples_that_are_scored(name: str) -> None:
    tasks = load_tasks(name)
    assert [task.index for task in tasks] == [0, 1, 2]
    assert len({task.id for task in tasks}) == 3
    benchmark = find_benchmark(name)
    metric = make_metric(benchmark.metric, options=benchmark.options)
    right, wrong = await metric.score(RIGHT[name], tasks[0]), await metric.score("no idea", tasks[0])
    assert (right.score, wrong.score) == (1.0, 0.0)
    assert right.failure is wrong.failure is None


@pytest.mark.promise("benchmarks:formats")
@pytest.mark.parametrize(("name", "row", "references", "metadata"), FORMATS)
def test_published_rows_and_rows_of_the_solver_are_read(
    name: str, row: dict[str, Any], references: tuple[str, ...], metadata: dict[str, Any], tmp_path: Path
) -> None:
    [task] = read(write(tmp_path / "rows.jsonl", [row]), name)
    assert task.references == references
    wanted = {key: value for key, value in metadata.items() if key != "question"}
    assert {key: value for key, value in task.metadata.items() if key in wanted} == wanted
    assert not {"context", "paragraphs", "Annotator Metadata"} & task.metadata.keys()


@pytest.mark.promise("benchmarks:formats")
@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet", "nested.json"])
def test_the_same_rows_are_read_from_every_kind_of_file(form: str, tmp_path: Path) -> None:
    rows = [{"Question": "Which\ncity?", "Answer": "Paris"}, {"Question": "Which, then?", "Answer": "Rome"}]
    path = tmp_path / f"rows.{form}"
    match form:
        case "csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        case "parquet":
            table: Any = importlib.import_module("pyarrow")
            importlib.import_module("pyarrow.parquet").write_table(table.Table.from_pylist(rows), path)
        case "jsonl":
            write(path, rows)
        case _:
            said = {"data": rows, "version": 1} if form == "nested.json" else rows
            path.write_text(json.dumps(said, indent=1))
    assert [(task.id, task.references) for task in read(path, "bamboogle")] == [
        ("bamboogle_001", ("Paris",)), ("bamboogle_002", ("Rome",)),
    ]  # fmt: skip


@pytest.mark.promise("benchmarks:formats")
def test_rows_that_do_not_belong_to_a_benchmark_are_left_out(tmp_path: Path) -> None:
    gaia = [{"Question": "Read it.", "Level": 1, "Final answer": "1", "file_name": "a.pdf"}, FORMATS[8][1]]
    assert [task.id for task in read(write(tmp_path / "gaia.jsonl", gaia), "gaia")] == ["c"]
    musique = [{"question": "What?", "answer": "", "answerable": False}, FORMATS[6][1]]
    assert [task.id for task in read(write(tmp_path / "musique.jsonl", musique), "musique")] == ["2hop__1"]


@pytest.mark.promise("benchmarks:formats")
def test_the_game_of_24_takes_the_usual_hundred_tasks(tmp_path: Path) -> None:
    rows = "".join(f"{rank},1 4 6 11\n" for rank in range(1, 1363))
    path = tmp_path / "24.csv"
    path.write_text(f"Rank,Puzzles\n{rows}")
    tasks = read(path, "gameof24")
    assert (len(tasks), tasks[0].id, tasks[-1].id) == (100, "901", "1000")
    assert [task.id for task in load_tasks(path, benchmark="gameof24", limit=2)] == ["901", "902"]
    assert [task.id for task in load_tasks(path, benchmark="gameof24", ids=["7"])] == ["7"]


@pytest.mark.promise("benchmarks:asked")
def test_options_of_gpqa_have_a_fixed_order_that_does_not_reveal_the_answer() -> None:
    first, again = load_tasks("gpqa"), load_tasks("gpqa")
    assert first == again
    assert {task.references for task in first} == {("A",), ("B",)}
    assert "A. 1/2\nB. 1\nC. the square root of 2\nD. 2\n\nAnswer with the letter" in first[0].question


@pytest.mark.promise("benchmarks:shuffled")
def test_each_sample_of_gpqa_has_its_options_in_an_order_of_its_own() -> None:
    assignment = assign(RolloutConfig(benchmark_name="gpqa", samples=8))
    for task in assignment.tasks:
        samples = [assignment.sample(task, number) for number in range(8)]
        assert samples[0] == task
        assert samples == [assignment.sample(task, number) for number in range(8)]
        assert len({sample.references for sample in samples}) > 1
        right = {sample.metadata["options"][sample.references[0]] for sample in samples}
        assert len(right) == 1
        for sample in samples:
            assert sorted(sample.metadata["options"].values()) == sorted(task.metadata["options"].values())
            assert all(
                f"{letter}. {text}" in sample.question for letter, text in sample.metadata["options"].items()
            )
    medqa = assign(RolloutConfig(benchmark_name="medqa", samples=2))
    assert medqa.sample(medqa.tasks[0], 1) == medqa.tasks[0]


@pytest.mark.promise("benchmarks:asked")
def test_each_benchmark_has_its_own_prompt() -> None:
    asked = {name: load_tasks(name)[0].question for name in benchmark_names()}
    assert asked["gameof24"].startswith("Use the four numbers 2, 3, 4, 1, each exactly once")
    assert asked["bamboogle"].startswith("In which year")
    assert asked["aime24"].endswith("The answer is a whole number from 0 to 999.")
    assert "$n \\le 100$" in asked["aime24"]
    assert not any("option" in asked[name].lower() for name in ("bamboogle", "gaia", "aime24", "gameof24"))
