"""Edits replace exactly the given text, and `patch` accepts their diffs."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.files._content import diff, replace_text

LINES = st.lists(st.text("abc ", max_size=3), max_size=30)


def test_the_one_place_is_replaced() -> None:
    assert replace_text("a b c", "b", "x", "f", every=False) == ("a x c", 1)


def test_every_place_is_replaced_when_asked() -> None:
    assert replace_text("a a a", "a", "x", "f", every=True) == ("x x x", 3)


@pytest.mark.promise("files:edit:once")
def test_a_text_that_occurs_more_than_once_is_refused_with_its_lines() -> None:
    with pytest.raises(ToolFailure, match=r"occurs 2 times in 'f' \(lines 1, 3\)") as failure:
        replace_text("a\nb\na\n", "a", "x", "f", every=False)
    assert failure.value.kind is ErrorKind.BAD_ARGUMENTS


def test_a_text_that_does_not_occur_is_not_found() -> None:
    with pytest.raises(ToolFailure, match="other line ends") as failure:
        replace_text("a\r\nb\r\n", "a\nb", "x", "f", every=False)
    assert failure.value.kind is ErrorKind.NOT_FOUND


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ToolFailure, match="the same"):
        replace_text("a", "a", "a", "f", every=False)


@pytest.mark.promise("files:edit:diff")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, after=LINES, end=st.sampled_from(["", "\n"]))
def test_a_diff_can_be_applied_as_a_patch(
    tmp_path: Path, before: list[str], after: list[str], end: str
) -> None:
    old, new = "\n".join(before) + end, "\n".join(after) + "\n"
    # `patch` deletes a file that becomes empty and rejects an empty diff.
    assume(old.strip() and new.strip() and old != new)
    file = tmp_path / "file"
    file.write_text(old)
    subprocess.run(
        ["patch", str(file)], input=diff(old, new, "file").encode(), check=True, capture_output=True
    )
    assert file.read_text() == new


def test_a_diff_of_a_long_file_shows_only_the_places_that_changed() -> None:
    lines = [f"line {number}\n" for number in range(5000)]
    before = "".join(lines)
    after = before.replace("line 4321\n", "changed\n")
    assert diff(before, after, "f").splitlines() == [
        "--- f",
        "+++ f",
        "@@ -4319,7 +4319,7 @@",
        " line 4318",
        " line 4319",
        " line 4320",
        "-line 4321",
        "+changed",
        " line 4322",
        " line 4323",
        " line 4324",
    ]


def test_a_diff_that_is_too_long_says_so() -> None:
    assert diff("a\n" * 3000, "b\n" * 3000, "f") == "(a diff of 3000 lines, too long to show)"
