"""Data as text: readable, and the same in every run."""

from typing import Any

import pytest

from agentflow.team._executor import observed_text, trouble_of

NONE: list[Any] = []
PYTHON: dict[str, Any] = {
    "value": None,
    "stdout": "",
    "stderr": "",
    "error": None,
    "tables": NONE,
    "images": NONE,
    "displays": NONE,
}
TABLE: dict[str, Any] = {
    "columns": [{"name": "region", "dtype": "str"}, {"name": "amount", "dtype": "float"}],
    "rows": [["north", 3.0], ["south", None]],
    "total_rows": 7,
    "total_columns": 2,
}


@pytest.mark.promise("team:executor:observation")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"stdout": "hi\n", "stderr": "", "exit_code": 0, "cwd": "/x"}, "hi"),
        ({"stdout": "a\n", "stderr": "oh\nno\n", "exit_code": 2}, "a\nstderr:\noh\nno\nexit code: 2"),
        ({"stdout": "", "stderr": "", "exit_code": 0}, ""),
        ({**PYTHON, "stdout": "6\n", "value": "42"}, "6\n42"),
        ({**PYTHON, "value": "  region\n0 north", "tables": [TABLE]},
         "region | amount\nnorth | 3\nsouth | none\n… 7 rows in total"),
        ({**PYTHON, "error": {"type": "ValueError", "message": "bad\nvalue", "traceback": "File …"}},
         "error: ValueError: bad value"),
        ({**PYTHON, "displays": [{"mime": "text/markdown", "text": "**42**"}]}, "**42**"),
        ({**TABLE, "total_rows": 2, "error": None}, "region | amount\nnorth | 3\nsouth | none"),
        ({"columns": TABLE["columns"], "rows": TABLE["rows"], "row_count": 2, "truncated": True},
         "region | amount\nnorth | 3\nsouth | none\n… there are more rows"),
        ({"columns": TABLE["columns"], "rows": TABLE["rows"], "next_offset": 2},
         "region | amount\nnorth | 3\nsouth | none\n… there are more rows"),
        ({"columns": TABLE["columns"], "rows": TABLE["rows"], "row_count": 2, "truncated": False},
         "region | amount\nnorth | 3\nsouth | none"),
        ({"columns": [], "rows": [], "error": {"type": "IOException", "message": "no file"}},
         "error: IOException: no file"),
        ({"path": "a.txt", "kind": "text", "content": "one\ntwo\n", "next_offset": 3, "total_lines": 9},
         "one\ntwo\n… from line 3 on not shown (9 lines in total)"),
        ({"path": "a.png", "kind": "image", "content": "", "mime": "image/png", "size": 7},
         "a.png: image/png, 7 bytes"),
        ({"matches": [{"path": "a.py", "line": 2, "text": "x = 1"}, {"path": "b", "line": None, "text": None}],
          "files_searched": 2, "truncated": True}, "a.py:2: x = 1\nb\n… there are more"),
        ({"matches": [], "files_searched": 9, "truncated": False}, "no matches"),
        ({"path": ".", "entries": [{"path": "a", "kind": "file", "size": 3}], "total": 2},
         "a (file, 3 bytes)\n… 2 in total"),
        ({"path": "a", "replacements": 1, "diff": "-x\n+y\n"}, "a: 1 replaced\n-x\n+y"),
        ({"result": 3}, "3"),
        ({"result": 0}, "0"),
        ({"result": True}, "yes"),
        ({"result": []}, ""),
        ({"hits": [], "total": 0, "note": ""}, ""),
        ({"hits": [], "total": 3}, "hits: none\ntotal: 3"),
        ({"jobs": [{"number": 1, "pid": 4711, "state": "Running", "command": "sleep 9"}]},
         "jobs:\n  1. number: 1\n     state: Running\n     command: sleep 9"),
        ({"city": "Vell", "towers": ["a", "b"], "at": {"x": 1.5, "y": 2.0}},
         "city: Vell\ntowers:\n  1. a\n  2. b\nat:\n  x: 1.5\n  y: 2"),
        ({"text": "one\ntwo"}, "text:\n  one\n  two"),
        ({}, ""),
    ],
)  # fmt: skip
def test_data_is_rendered_readably(data: dict[str, object], text: str) -> None:
    assert observed_text(data) == text


@pytest.mark.promise("team:executor:observation")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"result": "<Thing object at 0x7f3a5c01d2e0>"}, "<Thing object at 0x…>"),
        ({"result": "wrote /tmp/tmpab12_xyz/out.csv"}, "wrote /tmp/tmp…/out.csv"),
        ({"result": "a\n… 9 of 99 characters left out; the whole is at agentflow://s-1f/1/stdout.txt …\nb"},
         "a\n… 9 of 99 characters left out …\nb"),
        ({"name": "x", "pid": 9, "modified": "2026-01-01", "link": "agentflow://s-1f/1/x", "elapsed": 0.1},
         "name: x"),
        ({"stdout": "", "stderr": "/etc/bash: line 1:    23 Killed                  sleep 60", "exit_code": 137},
         "stderr: /etc/bash: line 1: Killed                  sleep 60\nexit code: 137"),
        ({"result": "note: line 12 Kings"}, "note: line 12 Kings"),
        ({"result": "the address 0xdeadbeef is a constant"}, "the address 0xdeadbeef is a constant"),
    ],
)  # fmt: skip
def test_details_that_vary_between_runs_are_removed(data: dict[str, object], text: str) -> None:
    assert observed_text(data) == text


@pytest.mark.promise("team:executor:trouble")
@pytest.mark.parametrize(
    ("data", "trouble"),
    [
        ({"stdout": "", "stderr": "", "exit_code": 0}, ""),
        ({"stdout": "", "stderr": "", "exit_code": 1}, ""),
        ({"stdout": "", "stderr": "oh no", "exit_code": 1}, "exit code 1"),
        ({"stdout": "", "stderr": "", "exit_code": 2}, "exit code 2"),
        ({"stdout": "", "stderr": "", "exit_code": None}, ""),
        ({**PYTHON, "error": {"type": "ValueError", "message": "bad", "traceback": ""}}, "ValueError: bad"),
        ({**PYTHON, "error": {"type": "StopIteration", "message": "", "traceback": ""}}, "StopIteration"),
        (PYTHON, ""),
        ({"error": "it broke"}, "it broke"),
        ({"error": None, "result": 1}, ""),
    ],
)
def test_trouble_is_described_in_one_line(data: dict[str, object], trouble: str) -> None:
    assert trouble_of(data) == trouble
