"""`agentflow rollout`, `eval` and `analyse`, as somebody starts them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.rollouts import RESULTS, SUMMARY
from agentflow.testing import fake_endpoint
from tests.agentflow.cli._programs import finish, run, run_here, running, until_it_says
from tests.system._supervised import endpoint

PROGRAM = "agentflow.cli"
ROWS = [
    {"id": "a", "question": "When was Needle Light built?", "answer": "1834"},
    {"id": "b", "question": "Who was the designer of Needle Light?", "answer": "Theda Marrow"},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of the command, with a file of tasks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401 - whatever the command prints
    return json.loads(capsys.readouterr().out)


@pytest.mark.promise("rollout:command")
def test_the_command_processes_a_file_of_tasks_and_prints_a_summary(folder: Path) -> None:
    ended = run(PROGRAM, "rollout", "--data=tasks.jsonl", "max_turns=3", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert "2 of tasks; failed: none" in ended.stdout
    assert "exact_match" in ended.stdout
    assert "Files in rollout_results: results.jsonl, trajectories.jsonl, summary.json" in ended.stdout
    assert (folder / "rollout_results" / RESULTS).exists()
    again = run_here("rollout", "--data=tasks.jsonl", "max_turns=3", "--json", cwd=folder)
    told = json.loads(again.stdout)
    assert (told["status"], told["nothing_to_do"]) == (0, True)
    assert told["summary"]["tasks"] == 2


@pytest.mark.promise("rollout:command")
def test_invalid_settings_give_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["rollout", "max_turn=3"], "max_turn is unknown; did you mean max_turns?"),
        (["rollout", "--data=nowhere.jsonl"], "nowhere.jsonl"),
        (["eval", "gpqq"], "did you mean gpqa"),
        (["eval", "all", "--data=tasks.jsonl"], "one file can't be all benchmarks"),
        (["analyse", "nowhere"], "no such directory"),
        (["analyse", "."], "contains no summary.json"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.promise("rollout:command")
def test_the_resolved_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "--print-config", "max_workers=7", "api_key=sk-hidden"]) == 0
    out = capsys.readouterr().out
    assert "max_workers: 7" in out
    assert "hidden" not in out


@pytest.mark.promise("rollout:command")
def test_a_signal_stops_it_cleanly_and_the_same_command_resumes(folder: Path) -> None:
    with endpoint(hold_after=0) as at:
        # The same tools in both environments.
        words = ("rollout", "--data=tasks.jsonl", *at.words, "max_turns=2", "available_tools=[rag_search]")
        with running(PROGRAM, *words, cwd=folder) as process:
            until_it_says(process, "started")
            until_it_says(process, "growing")
            at.wait_for(calls=1)
            process.send_signal(signal.SIGINT)
            until_it_says(process, "stopping")
            at.release()
            status, _, err = finish(process)
        assert status == 130
        assert "stopped: received SIGINT; run the same command again to resume" in err
        after = run_here(*words, cwd=folder)
    assert after.returncode == 0, after.stderr
    assert len((folder / "rollout_results" / RESULTS).read_text().splitlines()) == 2


@pytest.mark.promise("rollout:eval")
def test_a_table_of_all_benchmarks_needs_neither_key_nor_data(folder: Path) -> None:
    ended = run_here("eval", "all", "--limit=1", "max_turns=2", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    names = (
        "bamboogle",
        "2wiki",
        "hotpotqa",
        "musique",
        "gaia",
        "aime24",
        "amc23",
        "gameof24",
        "gpqa",
        "medqa",
    )
    rows = [line.split()[0] for line in ended.stdout.splitlines() if "offline" in line]
    assert rows == list(names)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert {line["event"] for line in lines} == {"started", "progress", "finished", "ended"}
    assert {line["benchmark"] for line in lines if line["event"] == "finished"} == set(names)
    assert lines[-1]["rollouts"] == "10 of 10"


@pytest.mark.promise("rollout:tools:usual")
def test_a_benchmark_with_its_published_data_has_the_usual_tools_that_work_here(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "real.csv").write_text("Question,Answer\nWhere was Ada Lovelace born?,London\n")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_endpoint()) as url,
    ):
        words = ["bamboogle", "--data=real.csv", "--models=one", "--json", f"base_url={url}", "max_turns=1"]
        assert main(["eval", *words]) == 0
    written = capsys.readouterr()
    summary = json.loads(written.out)[0]["summary"]
    assert set(summary["tools"]) == {"base_generator", "python_coder", "web_wikipedia", "web_read"}
    assert list(summary["dropped_tools"]) == ["web_search"]
    lines = [json.loads(line) for line in written.err.splitlines()]
    (left,) = [line for line in lines if line["event"] == "usual tools are left out"]
    assert left["reasons"].startswith("web_search: no search engine is configured: set SERPER_API_KEY")


@pytest.mark.promise("rollout:eval")
def test_models_and_samples_are_compared_and_analysed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_endpoint()) as url,
    ):
        words = [f"base_url={url}", "available_tools=[rag_search]", "max_turns=1", "--limit=2", "--samples=2"]
        assert main(["eval", "bamboogle", "--models=one,two", "--json", *words]) == 0
        rows = said(capsys)
        merged = ["verify=merged", "output_dir=merged"]
        assert main(["eval", "bamboogle", "--models=one", "--json", *words, *merged]) == 0
        said(capsys)
    assert [(row["benchmark"], row["model"], row["summary"]["results"]) for row in rows] == [
        ("bamboogle", "one", 4), ("bamboogle", "two", 4),
    ]  # fmt: skip
    assert (folder / "eval_results" / "bamboogle" / "one" / SUMMARY).exists()
    assert main(["analyse", "eval_results", "merged", "--picture=all.svg", "--json"]) == 0
    told = said(capsys)
    titles = [table["title"] for table in told["tables"]]
    assert titles == [
        "Accuracy", "Average turns and score by budget", "Share of tool calls by tool",
        "Failed tool calls", "Separate and merged verifier",
    ]  # fmt: skip
    verifying = told["tables"][-1]
    assert [row[verifying["columns"].index("verifier")] for row in verifying["rows"]] == [
        "separate",
        "merged",
    ]
    assert (folder / "all.svg").read_text().startswith("<svg")
    assert main(["analyse", "eval_results"]) == 0
    assert "Accuracy" in capsys.readouterr().out
    assert main(["analyse", "eval_results", "--picture=all.pdf"]) == 2
