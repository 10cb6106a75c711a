"""Runs by the real command that end early in every way and resume, and requests to a running one."""

import json
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from agentflow.cli import main
from tests.agentflow.cli._programs import finish, running, until_it_says
from tests.system._supervised import (
    PROGRAM,
    Endpoint,
    contents,
    endpoint,
    follow,
    settings,
    supervise,
    trees_of,
    undisturbed,
)

DOCUMENTED = Path(__file__).parents[1] / "agentflow/synthesis/documented"
BUDGETS = {
    "max_total_tokens=6000": "the budget of 6,000 tokens is used up",
    "max_cost=15 prices.input=1000 prices.output=1000": "the budget of 15 is spent",
    "max_seconds=1": "the budget of 1 seconds is used up",
}
TOOL_TO_MISS = {
    "data_analysis": "read_file",
    "document": "read_document",
    "full": "web_search",
    "rag": "retrieval",
    "text2sql": "execute_sql",
    "web": "web_search",
}


@contextmanager
def working(folder: Path, at: Endpoint, *words: str) -> Generator[Popen[str]]:
    """Program that waits for a model's answer."""
    last = at.hold(1)
    with running(PROGRAM, *words, cwd=folder) as process:
        at.wait_for(calls=last + 1)
        yield process
    at.release()


def stops(process: Popen[str], at: Endpoint) -> None:
    """Wait until it has received the stop, and let it have its answer."""
    until_it_says(process, "stopping")
    at.release()


@pytest.mark.promise("system:stops")
def test_an_interrupted_run_resumes_with_the_same_command_and_gives_the_same_files(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with endpoint(delay_ms=100) as at:
        words = (*settings(tmp_path), *at.words, "max_open_trees=1")
        for budget, why in BUDGETS.items():
            ended = supervise(tmp_path, *words, *budget.split(), status=3)
            assert ended.said["stopped"]["cause"] == "budget"
            assert why in ended.said["stopped"]["message"]
            said.append(ended.err)
        spent = at.stats()["calls"]
        supervise(tmp_path, *words, "max_total_tokens=6000", status=3)
        assert at.stats()["calls"] == spent, "what is used up is used up"
        with working(tmp_path, at, *words) as process:
            process.send_signal(signal.SIGTERM)
            stops(process, at)
            status, _, err = finish(process)
        said.append(err)
        assert (status, "stopped: received SIGTERM" in err) == (130, True)
        with working(tmp_path, at, *words) as process:
            assert process.stdout is not None
            process.stdout.close()
            stops(process, at)
            assert process.stderr is not None
            said.append(process.stderr.read())
            assert process.wait(60) == 130
        assert at.stats()["repeated_bodies"] == 0, "what was in flight ended, and was kept"
        with working(tmp_path, at, *words) as process:
            # Two signals of the same kind may arrive as one.
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            status, _, err = finish(process)
        said.append(err)
        assert status == 130
        assert supervise(tmp_path, *words).report["pairs"] > 0
    assert not [err for err in said if "Traceback" in err]
    assert contents(tmp_path / "out") == undisturbed().files


@pytest.mark.promise("system:added-seeds")
def test_seeds_added_at_runtime_give_the_files_of_a_run_that_started_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["The lighthouse of the northern coast", "The ferries of the southern harbour"]
    with endpoint(hold_after=0) as at:
        words = (*settings(tmp_path, max_depth=3), *at.words, "number_of_seed=2")
        with running(PROGRAM, "--json", *words, "control=true", cwd=tmp_path) as process:
            follow(process, lambda line: line["event"] == "control server")
            assert main(["ctl", "add", "--dir", str(tmp_path / "out"), "--json", *more]) == 0
            added = json.loads(capsys.readouterr().out)
            at.release()
            status, out, err = finish(process)
    assert status == 0, err
    assert (added["ids"], added["note"]) == (["seed_003", "seed_004"], "")
    assert json.loads(out)["report"]["seeds"] == 4
    assert [tree["seed_data"] for tree in trees_of(tmp_path / "out")][2:] == more
    first = (tmp_path / "seeds.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    lines = [*first, *(json.dumps({"content": content}) for content in more)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with endpoint() as at:
        supervise(tmp_path, *words[:2], *at.words, "seeds_file=all.jsonl", "output_dir=whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.promise("system:documented")
@pytest.mark.parametrize(("example", "tool"), TOOL_TO_MISS.items())
def test_a_documented_configuration_with_missing_tools_is_refused_in_one_line_that_names_the_tool(
    example: str,
    tool: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seeds.jsonl").write_text('{"content": "Explore the harbour"}', encoding="utf-8")
    words = ["seeds_file=seeds.jsonl", "sandbox_server_url=null"]
    assert main(["synth", "--config", str(DOCUMENTED / f"{example}.json"), *words]) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentflow")]
    assert len(complaint) == 1
    assert f"available_tools: {tool} can't be used: " in complaint[0]
    assert "on_missing_tool=drop" in complaint[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seeds.jsonl"]


@pytest.mark.promise("system:documented")
def test_the_documented_knowledge_base_needs_only_documents_and_seeds(tmp_path: Path) -> None:
    (tmp_path / "seeds.jsonl").write_text('{"content": "Explore the harbour of Orm"}', encoding="utf-8")
    documents = tmp_path / "documents"
    documents.mkdir()
    for name, sentence in {
        "harbour": "The harbour of Orm was built in 1820 by Ada Lind.",
        "lind": "Ada Lind, who built the harbour of Orm, was born in Low Varn.",
        "varn": "Low Varn, where Ada Lind was born, is known for its lighthouse.",
    }.items():
        (documents / f"{name}.txt").write_text(sentence, encoding="utf-8")
    said = json.loads((DOCUMENTED / "rag.json").read_text(encoding="utf-8"))
    said["resource_init_configs"]["knowledge_base"]["index_path"] = "documents"
    said["seeds_file"] = "seeds.jsonl"
    (tmp_path / "rag.json").write_text(json.dumps(said), encoding="utf-8")
    ended = supervise(tmp_path, "--config", "rag.json", "on_missing_tool=drop")
    assert list(ended.said["report"]["dropped_tools"]) == ["web_search"]
    assert ended.report["verdicts"]["new"] > 0
