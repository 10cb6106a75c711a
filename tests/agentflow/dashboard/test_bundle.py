"""Bundles and reports: the same data as the live view, in files."""

import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.cli import main
from agentflow.dashboard import REPORT_PAGE, PageData, api_path, write_bundle, write_report
from agentflow.errors import ConfigurationError
from agentflow.inspection import open_runs
from agentflow.journal import NewSeed, open_journal, this_process
from agentflow.runs import RUN_MODELS, RunModels
from agentflow.synthesis import SeedResult
from tests.agentflow.learner.test_token_page import write_run


def bundled(folder: Path) -> dict[str, Any]:
    """Return the answers in a bundle by path, as its page finds them."""
    index = (folder / "data/index.js").read_text(encoding="utf-8")
    chunks = json.loads(index.removeprefix("globalThis.agentflow = ").removesuffix(";\n"))["chunks"]
    assert [first for first, _ in chunks] == sorted(first for first, _ in chunks)
    found: dict[str, Any] = {}
    for first, name in chunks:
        text = (folder / name).read_text(encoding="utf-8")
        quoted = text.removeprefix("agentflow.load(JSON.parse('").removesuffix("'));\n")
        answers = json.loads(re.sub(r"\\([\\'])", r"\1", quoted))
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


@pytest.mark.promise("view:bundle")
def test_a_bundle_can_leave_prompts_out(finished: Path, tmp_path: Path) -> None:
    with open_runs(finished) as runs:
        whole = write_bundle(PageData(runs), tmp_path / "whole")
        lean = write_bundle(PageData(runs), tmp_path / "lean", prompts=False)
    assert lean.bytes < whole.bytes
    details = [found for path, found in bundled(tmp_path / "lean").items() if "/call?" in path]
    assert details
    assert {(len(each["prompt"]), each["missing"]) for each in details} == {(0, "this bundle has none")}
    assert all(each["call"]["text"] for each in details)


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


SECRET = "sk-7f3kd92msla01kd83hfq"


async def write_synthesis(folder: Path, data: Path) -> None:
    """Store a run whose settings, models and failure name files of this machine."""
    settings = {
        "corpus": str(data),
        "mounts": {str(data): "/data"},
        "tools": ["rag_search"],
        "command": f"python {data.parent}/serve.py --port 1",
        "models": {"planner": {"model_name": f"{data.parent}/model", "api_key": SECRET}},
        "journal": f"postgresql://me:{SECRET}@db.example/runs",
    }
    async with open_journal(folder / "journal.db") as journal:
        run = await journal.open_run("private", settings)
        await run.keep(RUN_MODELS, RunModels(names={"planner": f"{data.parent}/model"}))
        await run.add_seeds([NewSeed("Ferries")])
        (seed,) = await run.claim(this_process(), 1)
        failed = SeedResult(failure=f"FileNotFoundError: No such file: '{data}'")
        await run.finish(seed, msgspec.json.encode(failed))


@pytest.mark.promise("view:bundle:private")
@pytest.mark.parametrize("kind", ["synthesis", "training", "tuning"])
async def test_bundles_and_reports_have_no_path_of_the_machine_and_no_secret(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "private run"
    folder.mkdir()
    if kind == "synthesis":
        await write_synthesis(folder, tmp_path / "my data" / "ferries.jsonl")
    else:
        write_run(folder)
        with (folder / "settings.yaml").open("a", encoding="utf-8") as file:
            file.write(f"output_dir: {folder}\napi_key: {SECRET}\n")
            file.write(f"solve: {tmp_path}/agent.py:solve\n" if kind == "tuning" else "")
        (folder / "metrics.jsonl").write_text('{"step": 3, "reward": 0.5}\n', encoding="utf-8")
    with open_runs(folder) as runs:
        data = PageData(runs)
        assert runs.runs()[0].kind == kind
        assert str(tmp_path).encode() in data.load("runs")
        bundle = write_bundle(data, tmp_path / "bundle")
        live = runs.runs()[0].settings
    report = write_report(folder).read_bytes()
    for name, body in {**contents(tmp_path / "bundle"), "report": report}.items():
        for secret in (str(tmp_path), str(Path.home()) + "/", SECRET):
            assert secret.encode() not in body, (name, secret)
    (shown,) = bundled(tmp_path / "bundle")["runs"]
    assert shown["settings"].keys() == live.keys()
    assert "…/model" in json.dumps(shown, ensure_ascii=False)
    assert bundle.seeds == (1 if kind == "synthesis" else 6)
