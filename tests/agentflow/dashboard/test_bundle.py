"""Bundles and reports: the same data as the live view, in files."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from agentflow.cli import main
from agentflow.dashboard import REPORT_PAGE, PageData, api_path, write_bundle, write_report
from agentflow.errors import ConfigurationError
from agentflow.inspection import open_runs


def bundled(folder: Path) -> dict[str, Any]:
    """Return the answers in a bundle by path, as its page finds them."""
    index = (folder / "data/index.js").read_text(encoding="utf-8")
    chunks = json.loads(index.removeprefix("globalThis.agentflow = ").removesuffix(";\n"))["chunks"]
    assert [first for first, _ in chunks] == sorted(first for first, _ in chunks)
    found: dict[str, Any] = {}
    for first, name in chunks:
        text = (folder / name).read_text(encoding="utf-8")
        answers = json.loads(text.removeprefix("agentflow.load(").removesuffix(");\n"))
        assert next(iter(answers)) == first
        assert all(known < first for known in found)
        found |= answers
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.promise("view:bundle")
def test_a_bundle_has_the_data_of_the_live_view_and_the_same_bytes_each_time(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(finished)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["bundle", str(finished), "-o", str(one), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["runs"], summary["seeds"]) == (1, 2)
    assert main(["bundle", str(finished), "-o", str(two)]) == 0
    assert main(["bundle", str(finished), "-o", str(two)]) == 0
    assert contents(one) == contents(two)
    assert contents(finished) == before

    answers = bundled(one)
    with open_runs(finished) as runs:
        data = PageData(runs)
        nodes = [path for path in answers if "/node" in path]
        assert len(nodes) == summary["nodes"]
        chosen = random.Random(0).sample(nodes, min(50, len(nodes)))
        for path in [*chosen, *(path for path in answers if "/node" not in path and path.count("/") > 1)]:
            assert answers[path] == json.loads(data.load(path)), path
    page = (one / "index.html").read_text(encoding="utf-8")
    assert page.index("data/index.js") < page.index('src="static/')
    assert '"/static' not in page


@pytest.mark.promise("view:bundle")
def test_a_bundle_can_be_of_some_seeds_and_never_replaces_other_files(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    assert main(["bundle", str(finished), "-o", str(folder), "--seeds", "seed_002", "--no-blobs"]) == 0
    answers = bundled(folder)
    run = answers["runs"][0]["id"]
    assert [seed["id"] for seed in answers[api_path("r", run, "seeds")]] == ["seed_002"]
    assert not any("/s/seed_001/" in path for path in answers)
    assert answers["runs"][0]["folder"] == ""
    with (
        open_runs(finished) as runs,
        pytest.raises(ConfigurationError, match=r"--seeds: there is no seed_9 in"),
    ):
        write_bundle(PageData(runs), folder, seeds=["seed_9"])
    assert bundled(folder) == answers
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine", encoding="utf-8")
    for other, line in ((taken, "holds something else"), (taken / "thesis.txt", "is a file")):
        with open_runs(finished) as runs, pytest.raises(ConfigurationError, match=line):
            write_bundle(PageData(runs), other)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.promise("view:report")
def test_every_run_ends_with_a_report_of_one_file(finished: Path) -> None:
    page = (finished / REPORT_PAGE).read_text(encoding="utf-8")
    assert "Explore the ferries" in page
    assert "<script" not in page
    assert "src=" not in page
    assert "default-src 'none'" in page
    assert write_report(finished).read_text(encoding="utf-8") == page


@pytest.mark.promise("view:report")
async def test_a_report_that_can_not_be_written_is_one_line_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from agentflow.runs import write_report_page

    (tmp_path / "journal.db").write_bytes(b"no journal" * 1000)
    with caplog.at_level(logging.WARNING):
        await write_report_page(tmp_path)
    assert len(caplog.records) == 1
    assert not (tmp_path / REPORT_PAGE).exists()
