"""The search program, on a folder of this machine."""

import io
import json
from pathlib import Path
from typing import cast

import pytest

from mcp_servers.files import _search_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "a.py": "import os\nÄpfel = 1\n",
        "sub/b.py": "import sys\n",
        "sub/deep/c.txt": "import nothing\r\n",
        "sub/image.bin": "import\0",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    return tmp_path


def matching_lines(folder: Path, **request: str | int | bool | None) -> list[str]:
    payload = {
        "path": str(folder),
        "pattern": None,
        "glob": None,
        "ignore_case": False,
        "limit": 100,
        **request,
    }
    matches = cast("list[dict[str, object]]", _search_program.answer(payload)["matches"])
    return [":".join(str(part) for part in match.values()).removeprefix(f"{folder}/") for match in matches]


def test_lines_are_found_in_text_files_only(folder: Path) -> None:
    assert matching_lines(folder, pattern="^import") == [
        "a.py:1:import os",
        "sub/b.py:1:import sys",
        "sub/deep/c.txt:1:import nothing",
    ]


def test_expressions_are_over_characters_and_may_ignore_case(folder: Path) -> None:
    assert matching_lines(folder, pattern=r"^.pfel\b") == ["a.py:2:Äpfel = 1"]
    assert matching_lines(folder, pattern="äPFEL", ignore_case=True) == ["a.py:2:Äpfel = 1"]
    assert matching_lines(folder, pattern="nothing$") == ["sub/deep/c.txt:1:import nothing"]


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.py", ["a.py", "sub/b.py"]),
        ("sub/*", ["sub/b.py", "sub/image.bin"]),
        ("sub/**/*.txt", ["sub/deep/c.txt"]),
        ("**/*.[!p]*", ["sub/image.bin", "sub/deep/c.txt"]),
        ("/a.p?", ["a.py"]),
        ("**/deep/**", ["sub/deep/c.txt"]),
        ("dangling", ["dangling"]),
    ],
)
def test_globs_find_names_at_their_depth(folder: Path, glob: str, names: list[str]) -> None:
    assert matching_lines(folder, glob=glob) == names


def test_both_find_lines_in_some_files(folder: Path) -> None:
    assert matching_lines(folder, pattern="import", glob="*.txt") == ["sub/deep/c.txt:1:import nothing"]


def test_a_single_file_can_be_searched(folder: Path) -> None:
    assert matching_lines(folder / "a.py", pattern="os") == [f"{folder}/a.py:1:import os"]


def test_long_results_are_truncated_and_marked(folder: Path) -> None:
    (folder / "many").write_text("x" * 10_000 + "\n" + "x\n" * 1000)
    answer = _search_program.answer(
        {"path": str(folder), "pattern": "x", "glob": None, "ignore_case": False, "limit": 5}
    )
    matches = cast("list[dict[str, object]]", answer["matches"])
    assert len(matches) == 5
    assert answer["truncated"] is True
    assert len(str(matches[0])) < 700


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"pattern": "("}, "wrong"),
        ({"path": "/nowhere"}, "errno"),
        ({"glob": "[]", "pattern": None}, "found"),
    ],
)
def test_an_invalid_search_is_reported(
    change: dict[str, object], key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {
        "path": "/etc/hostname",
        "pattern": "x",
        "glob": None,
        "ignore_case": False,
        "limit": 5,
        **change,
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    _search_program.main()
    assert list(json.loads(capsys.readouterr().out)) == [key]
