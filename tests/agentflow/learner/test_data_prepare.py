"""Training data: documented columns, each question once, test questions removed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow is typed in part.

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyarrow import parquet

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.learner.data import prepare
from agentflow.rollouts import load_tasks

COLUMNS = ["id", "question", "chain", "result", "source", "extra_info"]


def _search_file(folder: Path, number: int = 20) -> Path:
    """As Natural Questions is published for search."""
    return _lines(
        folder / "nq.jsonl",
        [
            {"id": f"train_{n}", "question": f"who wrote book {n}", "golden_answers": [f"Ann {n}", f"A. {n}"]}
            for n in range(number)
        ],
    )


def _math_file(folder: Path, number: int = 20) -> Path:
    """As DeepMath is published."""
    import pyarrow

    rows = [
        {"question": f"Evaluate $x_{n}$.", "final_answer": f"{n}; 2", "difficulty": 5.0, "r1_solution_1": "…"}
        for n in range(number)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "deepmath.parquet")
    return folder / "deepmath.parquet"


def _aime_file(folder: Path) -> Path:
    return _lines(
        folder / "aime.jsonl",
        [
            {"ID": "2024-I-1", "Problem": "Find the time.", "Answer": 204},
            {"id": 2, "problem": "EVALUATE  $x_3$.", "solution": "So \\boxed{33}."},
        ],
    )


def _lines(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        str(path.relative_to(folder)): parquet.read_table(path).to_pylist()
        for path in sorted(folder.rglob("*.parquet"))
    }


@pytest.mark.promise("train_data:columns")
def test_search_and_math_become_the_documented_columns(tmp_path: Path) -> None:
    out = tmp_path / "data"
    said = prepare(
        out, search=[_search_file(tmp_path)], math=[_math_file(tmp_path)], aime24=_aime_file(tmp_path)
    )
    files = _read(out)
    assert {name: len(rows) for name, rows in files.items()} == said.files
    assert said.files == {
        "train/combined_train.parquet": 36,
        "val/held_out.parquet": 3,
        "val/aime24.parquet": 2,
    }
    assert said.tested == 1
    assert sum(said.sources.values()) == 36
    rows = [row for name in sorted(files) for row in files[name]]
    assert all(list(row) == COLUMNS for row in rows)
    search = next(row for row in rows if row["source"] == "nq")
    assert (
        search["result"]
        == search["extra_info"]["ground_truth"]
        == "; ".join(search["extra_info"]["golden_answers"])
    )
    assert search["chain"] == ""
    test = files["val/aime24.parquet"]
    assert [(row["result"], row["source"]) for row in test] == [("204", "aime2024"), ("33", "aime2024")]
    assert test[0]["extra_info"]["original_problem"] == "Find the time."


def test_numbers_are_unique_over_sources_and_files(tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare(out, search=[_search_file(tmp_path)], math=[_math_file(tmp_path)], aime24=_aime_file(tmp_path))
    rows = [row for rows in _read(out).values() for row in rows]
    assert sorted(row["id"] for row in rows) == list(range(41))
    assert all(row["id"] == row["extra_info"]["idx"] for row in rows)


@pytest.mark.promise("train_data:apart")
def test_every_question_occurs_once_and_test_questions_are_removed(tmp_path: Path) -> None:
    again = _lines(
        tmp_path / "more.jsonl",
        [
            {"question": "Who wrote  BOOK 3", "answer": "Ann 3"},
            {"question": "find the time.", "answer": "204"},
            {"question": "who wrote nothing", "answer": "nobody"},
        ],
    )
    out = tmp_path / "data"
    said = prepare(out, search=[_search_file(tmp_path), again], aime24=_aime_file(tmp_path))
    assert (said.duplicates, said.tested) == (1, 1)
    files = _read(out)
    test = {row["question"].casefold() for row in files.pop("val/aime24.parquet")}
    asked = [row["question"].casefold() for rows in files.values() for row in rows]
    assert len(asked) == len(set(asked)) == 21
    assert not test & set(asked)


@pytest.mark.promise("train_data:same")
def test_the_same_seed_gives_the_same_bytes_and_another_one_another_order(tmp_path: Path) -> None:
    search, math = _search_file(tmp_path), _math_file(tmp_path)
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        prepare(tmp_path / name, search=[search], math=[math], seed=seed, limit=10)
    first, second, third = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).rglob("*.parquet"))}
        for name in ("one", "two", "three")
    )
    assert first == second
    assert first != third
    rows = _read(tmp_path / "one")
    assert sum(map(len, rows.values())) == 20
    sources = [row["source"] for row in rows["train/combined_train.parquet"]]
    assert sources != sorted(sources)


def test_more_rows_do_not_change_the_order_of_the_others(tmp_path: Path) -> None:
    prepare(tmp_path / "few", search=[_search_file(tmp_path)], validation=0)
    prepare(tmp_path / "many", search=[_search_file(tmp_path, 30)], validation=0)
    few, many = (
        [row["question"] for row in _read(tmp_path / name)["train/combined_train.parquet"]]
        for name in ("few", "many")
    )
    assert [question for question in many if question in few] == few


@pytest.mark.promise("train_data:columns")
def test_training_reads_what_was_prepared(tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare(out, search=[_search_file(tmp_path)], math=[_math_file(tmp_path)], validation=5)
    tasks = load_tasks(out / "train" / "combined_train.parquet")
    assert len({task.id for task in tasks}) == 35
    search = next(task for task in tasks if task.metadata["source"] == "nq")
    number = search.question.rsplit(" ", 1)[1]
    assert search.references == (f"Ann {number}", f"A. {number}")
    math = next(task for task in tasks if task.metadata["source"] == "mathhard")
    assert len(math.references) == 1
    assert math.references[0].endswith("; 2")
    assert set(math.metadata) == {"source"}


def test_prepared_data_of_others_is_read_too(tmp_path: Path) -> None:
    path = _lines(
        tmp_path / "theirs.jsonl",
        [
            {
                "id": 0,
                "question": "who",
                "chain": "",
                "result": "a; b",
                "source": "nq",
                "extra_info": {"ground_truth": "a; b", "idx": 0},
            },
            {
                "id": 1,
                "question": "solve",
                "chain": "",
                "result": "1; 2",
                "source": "mathhard",
                "extra_info": {"ground_truth": "1; 2", "idx": 0},
            },
        ],
    )
    assert [task.references for task in load_tasks(path)] == [("a", "b"), ("1; 2",)]


@pytest.mark.promise("train_data:refused")
@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ('{"question": "who"}', "search", ":2: golden_answers: is missing; add it, or answer"),
        ('{"question": " ", "answer": "x"}', "search", ":2: question: is empty"),
        ('{"question": {"a": 1}, "answer": "x"}', "search", ":2: question: is an object, not a text"),
        ('{"question": "who", "answer"', "search", ":2: not JSON"),
        (
            '{"question": "how much"}',
            "math",
            ":2: final_answer: is missing; add it, or a solution with a box",
        ),
        ('["who"]', "math", ":2: is a list, not an object with fields"),
    ],
)
def test_a_broken_line_is_refused_with_its_place_and_nothing_is_written(
    line: str, kind: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "fine", "answer": "yes"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as problem:
        prepare(
            tmp_path / "data",
            search=[path] if kind == "search" else [],
            math=[path] if kind == "math" else [],
        )
    assert str(problem.value).startswith(str(path) + said)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "data").exists()


def test_impossible_preparations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is nothing to prepare"):
        prepare(tmp_path)
    with pytest.raises(ConfigurationError, match="no such file"):
        prepare(tmp_path, search=[tmp_path / "none.jsonl"])
    with pytest.raises(ConfigurationError, match="all 20 questions would be held out"):
        prepare(tmp_path, search=[_search_file(tmp_path)], validation=20)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="can't be written"):
        prepare(tmp_path / "file", search=[_search_file(tmp_path)])


def test_a_data_set_of_the_hub_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match="datasets is missing; pip install datasets"):
        prepare(tmp_path, search=["hub:owner/name"])

    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, configuration: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, configuration, split))
        if name == "owner/none":
            raise FileNotFoundError("no such data set\nand more")
        return [{"question": f"q {n}", "golden_answers": ["a"]} for n in range(3)] + [{"question": "q"}]

    stand_in = ModuleType("datasets")
    vars(stand_in)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    with pytest.raises(ConfigurationError, match=r"hub:owner/name:nq:dev: row 4: golden_answers: is missing"):
        prepare(tmp_path, search=["hub:owner/name:nq:dev"])
    with pytest.raises(ConfigurationError, match=r"^hub:owner/none: can't be loaded: no such data set$"):
        prepare(tmp_path, search=["hub:owner/none"])
    assert asked == [("owner/name", "nq", "dev"), ("owner/none", None, "train")]


def test_the_command_writes_the_files_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    words = ["data", "prepare", "--search", str(_search_file(tmp_path)), "--math", str(_math_file(tmp_path))]
    words += ["--aime24", str(_aime_file(tmp_path)), "--output", str(out), "--validation", "4"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"]["val/held_out.parquet"] == 4
    assert main(words) == 0
    assert f"{out}/train/combined_train.parquet: 35 questions" in capsys.readouterr().out
    assert main(["data", "prepare", "--search", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err
