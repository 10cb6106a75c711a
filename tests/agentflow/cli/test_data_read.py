"""`agentflow data read` reads, filters, writes and shows tasks."""

import json
from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.readers import read_tasks

ROWS = [
    {"id": "a", "q": "Who was it, in the end?", "answer": "x"},
    {"id": "b", "q": "who was it in the end", "answer": "x"},
    {"id": "c", "q": "What\x1b[31m red?"},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = 0
    try:
        status = main(["data", "read", *words])
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.promise("readers:command")
def test_tasks_are_written_with_counts_by_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rows.jsonl", "columns.question=q", "filters=[near_duplicates]", "-o", "out/tasks.jsonl"]
    status, out, _ = run(capsys, *words)
    assert (status, out.splitlines()) == (
        0,
        [
            "read 3 tasks, kept 2",
            "left out: 1 near_duplicates: near-duplicate",
            "  a: Who was it, in the end? -> x",
            "  c: What [31m red?",
            "out/tasks.jsonl: 2 tasks",
        ],
    )
    assert [task.id for task in read_tasks(folder / "out/tasks.jsonl")] == ["a", "c"]
    status, out, _ = run(capsys, "rows.jsonl", "columns.question=q", "limit=1", "--json")
    shown = json.loads(out)
    assert (status, shown["kept"], shown["first"][0]["id"]) == (0, 1, "a")


@pytest.mark.promise("readers:command")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rows.jsonl"], "rows.jsonl:1: question: is missing"),
        (["rows.jsonl", "columns.question=q", "limt=3"], "reader.limt is unknown; did you mean limit?"),
        (["none.jsonl"], "none.jsonl: no such file"),
        (
            ["rows.jsonl", "columns.question=q", "filters=[json:loads]"],
            "filters: json:loads: task a: raised TypeError",
        ),
        (["rows.jsonl", "columns.question=q", "-o", "rows.jsonl/x"], "can't be written"),
        (["own.py:rows"], "own.py: there is no such file"),
    ],
)
def test_a_problem_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *words)
    assert status == 2 and message in err and err.count("\n") == 1 and "rows.jsonl: " not in out
