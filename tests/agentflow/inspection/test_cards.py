"""Runs as tables of notebooks."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentflow.inspection import RunCollection, RunReader, open_runs
from agentflow.journal import NewSeed, open_journal
from tests.agentflow.inspection._journals import SETTINGS, OnlyRun, claimed

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e"


class _Tags(HTMLParser):
    """Tags and text of a fragment."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.tags = set[str]()
        self.text = ""
        self.feed(fragment)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def card(shown: RunReader | RunCollection) -> _Tags:
    """Return what a notebook shows."""
    return _Tags(shown._repr_html_())  # pyright: ignore[reportPrivateUsage] - the name that notebooks call


@pytest.mark.promise("inspection:notebooks")
async def test_a_run_and_a_collection_show_themselves_escaped(tmp_path: Path, only_run: OnlyRun) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        run = await journal.open_run("<b>run</b>", SETTINGS)
        await run.add_seeds([NewSeed(HOSTILE, {}, f"seed {number}") for number in range(12)])
    shown = card(only_run(tmp_path))
    assert shown.tags == {"div", "strong", "table", "tr", "th", "td"}
    assert "waiting: <script>alert(1)" in shown.text and "0 of 12 done" in shown.text
    assert "2 more seeds" in shown.text and "\x1b" not in shown.text and "\u202e" not in shown.text
    with open_runs(tmp_path) as collection:
        listed = card(collection)
    assert listed.tags == shown.tags and "synthesis, waiting, 0 of 12 done" in listed.text


@pytest.mark.promise("inspection:notebooks")
async def test_a_run_that_can_not_be_read_shows_the_reason(tmp_path: Path, only_run: OnlyRun) -> None:
    async with claimed(tmp_path / "journal.db") as (_, _, _):
        pass
    reader = only_run(tmp_path)
    (tmp_path / "journal.db").write_bytes(b"no database" * 100)
    shown = card(reader)
    assert "can't be read" in shown.text and "journal.db" in shown.text
