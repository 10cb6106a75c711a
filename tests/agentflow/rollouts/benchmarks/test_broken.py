"""Broken files of benchmarks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ConfigurationError
from agentflow.rollouts.benchmarks import benchmark_names, load_tasks

GOOD: dict[str, Any] = {
    "question": "Which?",
    "answer": "1",
    "numbers": "1 2 3 4",
    "options": {"A": "1", "B": "2"},
}
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("bamboogle", {"Question": "Which?"}, "2: answer: is missing"),
    ("bamboogle", {"Answer": "x"}, "2: question: is missing"),
    ("2wiki", {"question": ["Which?"], "answer": "x"}, "2: question: is a list, not a text"),
    ("2wiki", {"question": "  ", "answer": "x"}, "2: question: is empty"),
    ("hotpotqa", {"question": "Which?", "answer": {"a": 1}}, "2: answer: is an object, not a text"),
    ("hotpotqa", {"question": "Which?", "answer": "yes", "level": True}, "2: level: is a truth value"),
    ("musique", {"question": "Which?", "answer": "x", "answer_aliases": [None]}, "2: answer_aliases: is nothing"),
    ("gaia", {"Question": "Which?", "Level": 4, "Final answer": "x"}, "2: Level: is 4, not 1, 2 or 3"),
    ("aime24", {"problem": "Which?", "answer": "1000"}, "2: answer: is 1000, not a whole number from 0 to 999"),
    ("aime24", {"problem": "Which?", "answer": "x+1"}, "2: answer: is x+1, not a whole number"),
    ("amc23", {"question": "Which?", "solution": "long"}, "2: answer: is missing"),
    ("gameof24", {"Puzzles": "1 2 3"}, "2: Puzzles: has no four numbers"),
    ("gameof24", {"Rank": 1}, "2: Puzzles: is missing"),
    ("gpqa", {"Question": "Which?", "Correct Answer": "x", "Incorrect Answer 1": "y"}, "2: Incorrect Answer 2: is missing"),
    ("gpqa", {"question": "Which?", "answer": "A"}, "2: options: is missing"),
    ("medqa", {"question": "Which?", "options": {"A": "x"}, "answer_idx": "A"}, "2: options: has fewer than two"),
    ("medqa", {"question": "Which?", "options": {"A": "x", "B": "y"}, "answer_idx": "E"}, "2: answer: E is none of the options A, B"),
    ("medqa", {"question": "Which?", "options": {"A": "x", "B": 0.5, "C": []}, "answer": "x"}, "2: options: is a list"),
]  # fmt: skip
FILES = [
    ("cut.jsonl", 'GOOD\n{"question": "a', ":2: not JSON: "),
    ("list.jsonl", '\n["question"]\n', ":2: is a list, not an object with fields"),
    ("cut.json", '[\nGOOD,\n{"question": "a"', ":3: not JSON: "),
    ("early.json", "[\nGOOD\n", ":3: not JSON: the list ends here"),
    ("text.json", '[\nGOOD,\n"x"]', ":3: is a text, not an object with fields"),
    ("empty.jsonl", "\n", ": has no tasks"),
    ("none.csv", "", ": has no tasks"),
    ("wrong.txt", "x", "the name ends in none of .jsonl"),
    ("wrong.parquet", "x", ": not parquet: "),
    ("deep.json", "[" * 100_000, ":1: nested deeper than 100 levels"),
]
"""Files with what is wrong with them; `GOOD` stands for a row that all can read."""


@pytest.mark.promise("benchmarks:broken")
@pytest.mark.parametrize(("name", "row", "message"), BROKEN)
def test_a_broken_row_is_refused_with_its_line_and_field(
    name: str, row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(row)}\n")
    with pytest.raises(ConfigurationError, match=re.escape(f"{path}:{message}")) as refused:
        load_tasks(path, benchmark=name)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("benchmarks:broken")
@pytest.mark.parametrize("name", benchmark_names())
@pytest.mark.parametrize(("file", "text", "message"), FILES)
def test_a_broken_file_is_refused_by_every_loader(
    name: str, file: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_text(text.replace("GOOD", json.dumps(GOOD)))
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refused:
        load_tasks(path, benchmark=name)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("benchmarks:broken")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na,b\nc,d,e\n", ":3: has more fields than the first line names"),
        ('question,answer\n"a\nb",c\nd\n', ":4: answer: is missing"),
        ("question\na\n", ":2: answer: is missing"),
        (f"question,answer\na,{'b' * 200_000}\n", ":2: not CSV: "),
    ],
)
def test_a_broken_table_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_tasks(path, benchmark="bamboogle")


@pytest.mark.promise("benchmarks:broken")
def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "rows.jsonl"
    binary.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_tasks(binary, benchmark="gaia")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="can't be read"):
        load_tasks(tmp_path / "folder.jsonl", benchmark="gaia")
    with pytest.raises(ConfigurationError, match="no such file"):
        load_tasks(tmp_path / "none.jsonl", benchmark="gaia")


@pytest.mark.promise("benchmarks:broken")
def test_two_tasks_with_one_id_are_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"id": "x", "question": "a", "answer": "b"})
    path.write_text(f"{row}\n\n{row}\n")
    with pytest.raises(ConfigurationError, match=re.escape(f"{path}:3: id: x is used at {path}:1, too")):
        load_tasks(path)
