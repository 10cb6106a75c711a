"""Data cannot control the terminal on which it is shown."""

import json
import re

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentflow._terminal import escape_controls, printable
from agentflow.cli._output import print_json, print_wide
from agentflow.errors import ConfigurationError, exit_report
from agentflow.runs import report_table
from agentflow.trace import Piece, as_html, coloured

HOSTILE = (
    "a\x1b[2Jb\x1b]0;title\x07c\x1b]8;;http://evil.example\x1b\\d\x9b31me\x90q\x9c\u202ef\u2066g\u200bh\ufeffi\rj\x08k"
    "\U000e0041l\x7f"
)
CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


@pytest.mark.promise("project:terminal")
def test_control_characters_are_removed_and_all_letters_stay() -> None:
    assert (
        printable("tab\tline\nünïcödé 漢字 👍🏽 👨‍👩‍👧 עברית") == "tab\tline\nünïcödé 漢字 👍🏽 👨‍👩‍👧 עברית"
    )
    assert printable(HOSTILE) == "a[2Jb]0;titlec]8;;http://evil.example\\d31meqfghijkl"


@pytest.mark.promise("project:terminal")
def test_printed_tables_and_texts_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE))
    print_wide(table, HOSTILE, report_table([(HOSTILE, HOSTILE)]))
    shown = capsys.readouterr().out
    assert shown.count("]0;titlec") == 5
    assert not CONTROLS.search(shown)


@pytest.mark.promise("project:terminal")
def test_token_views_have_no_control_characters_of_the_tokens() -> None:
    pieces = [Piece(kind="context", ids=(1,)), Piece(kind="trained", ids=(1,), logprobs=(-0.1,))]
    console = Console(force_terminal=True, color_system="truecolor", width=200)
    with console.capture() as captured:
        console.print(coloured(pieces, lambda _: HOSTILE))
    assert not CONTROLS.search(re.sub(r"\x1b\[[0-9;]*m", "", captured.get()))
    assert not CONTROLS.search(as_html(pieces, lambda _: HOSTILE))


@pytest.mark.promise("project:terminal")
def test_errors_and_json_have_no_control_characters_and_json_keeps_the_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not CONTROLS.search(exit_report(ConfigurationError(HOSTILE)).message)
    print_json({"answer": HOSTILE})
    shown = capsys.readouterr().out
    assert not CONTROLS.search(shown)
    assert json.loads(shown) == {"answer": HOSTILE}
    assert json.loads(escape_controls(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE
