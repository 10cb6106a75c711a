"""`agentflow init`, `check` and `preview`: from an empty folder to a first look, and every part that does not work."""

import json
import subprocess
import sys
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentflow.cli import main
from agentflow.sandbox._api_tools import registered_tools
from agentflow.trace import QueryAnalysis

ANSWER = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "small",
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}  # fmt: skip
TASKS = '{"question": "Which gull?", "answer": "the herring gull"}\n'


class _Model(BaseHTTPRequestHandler):
    """Endpoint that answers with an object of the requested schema, otherwise with one word.

    Below `/prose` it ignores schemas, below `/plain` it refuses them.
    """

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        plain, formatted = self.path.startswith("/plain"), "response_format" in asked
        refused = plain and formatted
        schema = "queryanalysis" in json.dumps(asked) and not self.path.startswith("/prose")
        content = json.dumps(dict.fromkeys(QueryAnalysis.__struct_fields__, "x")) if schema else "ready"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        said = (
            {"error": {"message": "response_format is not supported"}}
            if refused
            else ANSWER | {"choices": [choice]}
        )
        body = json.dumps(said).encode()
        self.send_response(400 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    """Address of the endpoint."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[None]:
    """Work in a new directory; forget the tools that are registered there."""
    monkeypatch.chdir(tmp_path)
    tools = dict(registered_tools)
    yield
    registered_tools.clear()
    registered_tools.update(tools)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, list[tuple[Any, str]]]]:
    """Return the status, and what was said about each part."""
    status = main(["check", *words, "--json"])
    found: dict[str, list[tuple[Any, str]]] = {}
    for one in json.loads(capsys.readouterr().out)["checks"]:
        assert "\n" not in one["text"]
        found.setdefault(one["name"], []).append((one["works"], one["text"]))
    return status, found


@pytest.mark.promise("cli:init")
def test_a_new_folder_can_be_checked_previewed_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "new"]) == 0
    assert "next: cd new && agentflow check config.yaml" in capsys.readouterr().out
    Path("new").joinpath("seeds.jsonl").rename("seeds.jsonl")
    assert main(["check", "new/config.yaml"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said] == ["settings", "seeds", "tools", "corpus", "model"]
    before = sorted(Path.cwd().rglob("*"))
    assert main(["preview", "new/config.yaml", "max_depth=2", "--number", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Starting point: Explore the Grey Petrel" in shown
    assert "  rag_search {" in shown
    assert "\nQ: " in shown
    assert "tokens per kept pair" in shown
    assert sorted(Path.cwd().rglob("*")) == before
    assert main(["synth", "new/config.yaml", "max_depth=2", "number_of_seed=1"]) == 0


@pytest.mark.promise("cli:init")
def test_init_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("seeds.jsonl").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err == (
        "agentflow: seeds.jsonl: exists already; name an empty folder: agentflow init FOLDER\n"
    )
    assert [path.name for path in Path.cwd().iterdir()] == ["seeds.jsonl"]
    assert main(["init", "seeds.jsonl"]) == 2
    assert "seeds.jsonl: can't be written: " in capsys.readouterr().err


@pytest.mark.promise("cli:example")
def test_a_copied_example_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "new", "--example", "countdown"]) == 0
    assert "next: cd new && " in (said := capsys.readouterr().out)
    assert said.endswith("python examples/countdown/run.py\n")
    command = [sys.executable, "examples/countdown/run.py", "--help"]
    done = subprocess.run(command, cwd="new", capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("usage: examples/countdown/run.py")
    assert main(["init", "new", "--example", "frozen_lake"]) == 0
    before = sorted(Path.cwd().rglob("*"))
    assert main(["init", "new", "--example", "countdown"]) == 2
    assert "examples/countdown: exists already" in capsys.readouterr().err
    assert main(["init", "--example", "contdown"]) == 2
    assert "'contdown' is unknown; there are appworld, countdown" in capsys.readouterr().err
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.promise("cli:check")
def test_a_check_tries_tools_tasks_models_and_reward(capsys: pytest.CaptureFixture[str], url: str) -> None:
    Path("tasks.jsonl").write_text(TASKS)
    Path("tools.py").write_text(
        "from agentflow import register_api_tool\n"
        "@register_api_tool('birds:count', read_only=True)\n"
        "def count(name: str) -> int:\n    '''Count birds.'''\n    return 3\n"
    )
    Path("rewards.py").write_text(
        "def close(answer, task):\n    return 0.5 if answer in task.references else 0\n"
    )
    Path("run.yaml").write_text(
        f"{{data_path: tasks.jsonl, imports: [tools.py], tools: [rag_search, birds_count], metric: 'rewards.py:close', "
        f"model_name: small, base_url: '{url}'}}"
    )
    status, found = check(capsys, "run.yaml")
    assert status == 0
    assert found["settings"] == [(True, "run.yaml, for agentflow rollout")]
    assert found["tasks"] == [(True, "1 of tasks, metric rewards.py:close")]
    assert found["tools"] == [(True, "rag_search, birds_count")]
    roles = "analyst, planner, executor, verifier, generator, judge"
    assert found["model"] == [(True, f"small ({roles}) answered as the analyst, under its schema, 10 tokens")]
    assert found["reward"] == [
        (True, "rewards.py:close: 0.5 for the reference answer of task task_001, 'the herring gull'")
    ]


@pytest.mark.promise("cli:check")
@pytest.mark.parametrize(
    ("settings", "part", "message"),
    [
        ("data_path: nowhere.jsonl", "tasks", "nowhere.jsonl: no such file"),
        ("{data_path: tasks.jsonl, tools: [rag_serch]}", "tools", "rag_serch: no tool 'rag_serch'. Did you mean 'rag:search'?"),
        ("{data_path: tasks.jsonl, resource_init_configs: {rag: {index_path: nowhere}}}", "tools", "nowhere does not exist"),
        (
            "{data_path: tasks.jsonl, resource_init_configs: {sql: {databases: {main: shop.db}}}}",
            "tools", "sql.databases.main: ",
        ),
        ("{data_path: tasks.jsonl, model_name: gpt-4.1}", "model", "no key for https://api.openai.com/v1; set OPENAI_API_KEY"),
        ("{data_path: tasks.jsonl, metric: exakt_match}", "reward", "metric exakt_match: there is none of that name; did you mean exact_match?"),
        ("{data_path: tasks.jsonl, metric: 'wrong.py:high'}", "reward", "wrong.py:high gave 7, not a number from 0 to 1"),
        ("{data_path: tasks.jsonl, metric: 'wrong.py:raises'}", "reward", "wrong.py:raises: ZeroDivisionError: division by zero"),
        ("{data_path: tasks.jsonl, metric: 'broken.py:close'}", "reward", "broken.py: raised when it was imported, in broken.py:1"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_work_is_one_line_and_status_1(
    settings: str,
    part: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("tasks.jsonl").write_text(TASKS)
    Path("wrong.py").write_text("def high(answer, task): return 7\ndef raises(answer, task): return 1 / 0\n")
    Path("broken.py").write_text("1 / 0\n")
    Path("run.yaml").write_text(settings)
    status, found = check(capsys, "run.yaml", "--for", "rollout")
    assert status == 1
    assert any(works is False and message in text for works, text in found[part]), found


@pytest.mark.promise("cli:check:schema")
@pytest.mark.parametrize(
    ("path", "works", "text"),
    [
        (
            "prose/v1",
            False,
            "does not obey the schema of the analyst: the answer is not a valid queryanalysis",
        ),
        (
            "plain/v1",
            True,
            "answered as the analyst, the server refused its schema, so the prompt describes it",
        ),
    ],
)
def test_a_model_is_asked_under_the_schema_of_its_role(
    path: str, works: bool, text: str, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    Path("tasks.jsonl").write_text(TASKS)
    address = url.replace("v1", path)
    words = ("data_path=tasks.jsonl", "model_name=small", f"base_url={address}", "max_attempts=4")
    status, found = check(capsys, *words, "metric=exact_match", "--for", "rollout")
    assert status == (0 if works else 1)
    [(does, said)] = found["model"]
    assert (does, text in said) == (works, True), said
    assert works or "use a server with structured output" in said
    labelled = f"planner_model={{model_name: planner, base_url: '{url.replace('v1', 'prose/v1')}'}}"
    words = (
        *words[:-2],
        f"base_url={url}",
        f"analyst_model={{model_name: small, base_url: '{url}'}}",
        labelled,
    )
    status, found = check(capsys, *words, "metric=exact_match", "planner_format=labelled", "--for", "rollout")
    assert status == 0, "a planner with labels needs no structured output"
    assert [text for _, text in found["model"] if text.startswith("planner (planner) answered")]


@pytest.mark.promise("cli:check:training")
def test_the_agent_and_the_reward_of_a_tuning_are_found_and_quick_starts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("tasks.jsonl").write_text(TASKS)
    Path("agent.py").write_text(
        "def solve(task, policy): return ''\ndef reward(answer, task): return float(answer in task.references)\n"
    )
    Path("tune.yaml").write_text(
        "{solve: 'agent.py:solve', reward: 'agent.py:reward', tasks: {data_path: tasks.jsonl}, policy: {model: none}, "
        "output_dir: out}"
    )
    status, found = check(capsys, "tune.yaml", "--quick")
    assert status == 0
    assert found["settings"] == [(True, "tune.yaml, for agentflow tune")]
    assert found["agent"] == [(True, "agent.py:solve")]
    assert found["reward"][0][1].startswith("agent.py:reward: 1 for the reference answer of task task_001")
    assert "left out because of --quick" in found["trial"][0][1]
    status, found = check(capsys, "tune.yaml", "solve=agent.py:sovle")
    assert status == 1
    assert "agent.py:sovle" in found["agent"][0][1]
    assert "left out because a part above does not work" in found["trial"][0][1]
    assert not Path("out").exists()


@pytest.mark.promise("cli:check:training")
def test_a_policy_and_an_engine_that_do_not_start_are_one_line_each_and_the_log_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.agentflow.learner._models import save_tiny_model  # loads torch

    Path("tasks.jsonl").write_text(TASKS)
    words = ["tasks.data_path=tasks.jsonl", "policy.model=none", "output_dir=runs/out", "--for", "train"]
    status, found = check(capsys, *words)
    assert status == 1
    assert found["policy"][0][0] is False
    save_tiny_model(Path("model"))
    broken = Path("broken-python")
    broken.write_text(
        f"#!/bin/sh\n[ $1 = -c ] && exec echo cpu\necho 'ValueError: no such head' >&2; exit 1; {sys.executable}\n"
    )
    broken.chmod(0o755)
    before = sorted(Path.cwd().rglob("*"))
    words = [*words, "policy.model=model", "policy.dtype=float32", "policy.device=cpu"]
    status, found = check(capsys, *words, f"engine.server.python={broken.absolute()}")
    assert status == 1
    assert found["policy"][0][0] is True
    [(works, text)] = found["engine"]
    assert works is False
    assert text.startswith("policy can't be served: ValueError: no such head; its log is ")
    log = Path(text.rpartition("its log is ")[2])
    assert "no such head" in log.read_text()
    log.unlink()
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.promise("cli:check")
def test_settings_of_an_evaluation_and_the_description_of_a_benchmark_are_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("eval.yaml").write_text("{max_turns: 2}")
    status, found = check(capsys, "eval.yaml", "--for", "eval")
    assert status == 0
    assert found["tasks"] == [(None, "named by the command: agentflow eval NAME")]
    Path("tasks.jsonl").write_text(TASKS)
    Path("bench.yaml").write_text("{name: gulls, path: tasks.jsonl}")
    status, found = check(capsys, "bench.yaml")
    assert status == 0
    assert found["settings"] == [(True, "bench.yaml, for agentflow eval")]
    assert found["tasks"] == [(True, "1 of gulls, metric exact_match")]
    Path("bench.yaml").write_text("{name: gulls, path: nowhere.jsonl}")
    assert check(capsys, "bench.yaml")[0] == 1


@pytest.mark.promise("cli:check")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("max_depth: 3\nseeds_file: s.jsonl", "synth"),
        ("data_path: t.jsonl\nmax_turns: 3", "rollout"),
        ("tasks: {data_path: t.jsonl}\npolicy: {model: m}\nbackbone: debug", "train"),
        ("solve: team\ntasks: {data_path: t.jsonl}\nbackbone: debug", "tune"),
        ("metric: f1_score\nbenchmark_nam: x", "rollout"),
    ],
)
def test_the_command_of_a_file_is_the_one_that_knows_its_keys(
    text: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text(text)
    if "benchmark_nam:" in text:
        assert main(["check", "run.yaml"]) == 2
        assert "run.yaml: benchmark_nam is unknown; did you mean benchmark_name?" in capsys.readouterr().err
    else:
        assert check(capsys, "run.yaml")[1]["settings"] == [(True, f"run.yaml, for agentflow {kind}")]


@pytest.mark.promise("cli:preview")
def test_a_preview_of_a_rollout_shows_answers_and_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("{benchmark_name: bamboogle, max_turns: 2, output_dir: mine}")
    assert main(["preview", "run.yaml", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], len(shown["results"])) == (0, 2)
    assert shown["notes"] == ["rag: 91 documents of the bundled corpus"]
    assert not Path("mine").exists()
    Path("train.yaml").write_text("policy: {model: m}")
    assert main(["preview", "train.yaml"]) == 2
    assert "agentflow train backbone=debug" in capsys.readouterr().err
