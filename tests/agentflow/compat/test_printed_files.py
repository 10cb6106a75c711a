"""Printed files are there, JSON twins equal their YAML files, and printed commands are understood."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from agentflow.cli._main import command_parser
from agentflow.compat import ajet
from agentflow.learner import load_train_config
from agentflow.rollouts import load_tasks
from tests.agentflow.compat._printed import printed
from tests.agentflow.compat.conftest import SHIPPED
from tests.behaviour._tree import ROOT

TWINS = {
    "configs/rollout/rag_benchmark.json": "configs/rollout/rag_benchmark.yaml",
    "configs/sandbox-server/web_config.json": "configs/sandbox-server/web.yaml",
    "configs/synthesis/web_config.json": "configs/synthesis/web.yaml",
    ".env_template": ".env.template",
    "train/config.yaml": "configs/train/qwen2.5-7b_8gpu.yaml",
}
"""Printed file -> the file that it repeats."""

PRINTED = (
    *TWINS, ".env.template", "benchmark/benchmark.jsonl", "data/aime24_data.py", "data/get_train_data.py",
    "sandbox-server.sh", "scripts/serve_vllm.sh", "setup.sh", "test/exp/run_all_models_all_datasets.sh",
    "train/serve_with_logs.sh", "train/train_with_logs.sh", "tutorial/example_math_agent/math_agent.yaml",
)  # fmt: skip
"""Files that printed commands name, and that are not made by the user or a command."""

MADE = {"data/train/combined_train.parquet", "data/val/aime24.parquet"}
"""Printed files that a command makes."""


def commands(system: str) -> str:
    return "\n".join(snippet.text for snippet in printed(system).values() if snippet.kind == "bash")


def as_twin(path: str) -> str:
    """Return the text that a printed file has to have."""
    own = (ROOT / TWINS[path]).read_text(encoding="utf-8")
    return json.dumps(yaml.safe_load(own), indent=2) + "\n" if path.endswith(".json") else own


def write_twins() -> None:
    """Write the printed files anew: `python -c "from tests.agentflow.compat.test_printed_files import *; write_twins()"`."""
    for path in TWINS:
        if path.endswith(".json"):
            (ROOT / path).write_text(as_twin(path), encoding="utf-8")


@pytest.mark.promise("compat:files")
@pytest.mark.parametrize("path", TWINS)
def test_a_printed_file_equals_the_file_that_it_repeats(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == as_twin(path), f"run {write_twins.__doc__}"


@pytest.mark.promise("compat:files")
def test_every_file_that_the_snippets_name_is_there() -> None:
    texts = "\n".join(
        snippet.text
        for name in ("data_synthesis", "flow_grpo", "tuner")
        for snippet in printed(name).values()
    )
    named = set(re.findall(r"(?<![\w/.])\.?[\w./-]+/[\w./-]+\.(?:json|jsonl|yaml|sh|py|parquet)\b", texts))
    named |= set(re.findall(r"\bsetup\.sh|\.env_template", texts))
    ours = {name.removeprefix("./").replace("exp/", "test/exp/") for name in named if "path/to" not in name}
    assert ours - MADE <= set(PRINTED), "a printed file is missing from the table"
    missing = [path for path in PRINTED if not (ROOT / path).is_file()]
    assert missing == []
    assert {Path(path).parts[0] for path in PRINTED} <= {*SHIPPED, ".env.template"}


@pytest.mark.promise("compat:files")
def test_the_questions_of_the_benchmark_are_about_the_bundled_corpus() -> None:
    corpus = (ROOT / "mcp_servers/rag/corpus/documents.jsonl").read_text(encoding="utf-8")
    rows = [
        json.loads(line)
        for line in (ROOT / "benchmark/benchmark.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row for row in rows if row["answer"] not in corpus] == []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the printed files, beside a `python3` that prints its arguments."""
    for path in PRINTED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/python3"
    program.write_text("#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\nexit ${STATUS:-0}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(command: str, **environment: str) -> tuple[int, list[str]]:
    """Run a command; return its status and the lines that it wrote."""
    run = subprocess.run(
        ["bash", "-ec", command],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return run.returncode, (run.stdout + run.stderr).splitlines()


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:shell")
def test_printed_scripts_give_commands_that_are_understood() -> None:
    flow = printed("flow_grpo")
    parser = command_parser()
    serve, train = (line for line in flow["train"].text.splitlines() if line.startswith("bash "))
    for text, command, extra in (
        (serve, "train", "tasks.data_path=a"),
        (train, "train", "tasks.data_path=a"),
        (flow["serve"].text, "serve-model", "port=0"),
        (flow["evaluate"].text, "eval", "--limit 3"),
    ):
        status, said = shell(f"{text.strip()} {extra}")
        assert status == 0, said
        module, *words = said[said.index("-m") + 1 :]
        assert module == "agentflow.cli"
        assert parser.parse_args(words).command == command
    status, said = shell("cd test; bash exp/run_all_models_all_datasets.sh", MODELS="gpt-4o,a b")
    assert said[-2:] == ["--models", "gpt-4o,a b"]
    status, said = shell("bash scripts/serve_vllm.sh models/mine port=1")
    assert said[2:] == ["serve-model", "models/mine", "port=8000", "port=1"]


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:shell")
def test_a_failed_training_ends_with_its_status_and_its_output_is_kept() -> None:
    status, said = shell("bash train/train_with_logs.sh schedule.steps=1", STATUS="3", LOGS="kept here")
    assert status == 3
    assert said[-1] == "schedule.steps=1"
    assert Path("kept here/train.log").read_text(encoding="utf-8").splitlines() == said
    assert os.listdir("kept here") == ["train.log"]


@pytest.mark.promise("compat:shell")
def test_the_printed_installation_makes_the_environment_and_the_template_is_copied(checkout: Path) -> None:
    install, copy = (printed("flow_grpo")[name].text for name in ("install", "environment"))
    (line,) = [line for line in install.splitlines() if "setup.sh" in line]
    for path in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / path, checkout)
    status, said = shell(line, MAKEFLAGS="-n")
    assert status == 0, said
    assert any("scripts/make-venv" in each for each in said)
    assert any("scripts/install" in each for each in said)
    assert shell(copy)[0] == 0
    assert (checkout / ".env").read_bytes() == (ROOT / ".env.template").read_bytes()


@pytest.mark.promise("compat:shell")
def test_the_printed_data_scripts_write_the_printed_files(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [{"question": f"who wrote book {n}", "golden_answers": [f"Ann {n}"]} for n in range(20)]
    problems = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(3)]
    for name, rows in {"nq.jsonl": questions, "aime.jsonl": problems}.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [line for line in printed("flow_grpo")["data"].text.splitlines() if line.startswith("python ")]
    for line, words in zip(lines, (["--search", "nq.jsonl"], ["--aime24", "aime.jsonl"]), strict=True):
        script = shlex.split(line)[1]
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        assert ended.value.code == 0
    counts = {path: len(load_tasks(checkout / path)) for path in MADE}
    assert counts == {"data/train/combined_train.parquet": 18, "data/val/aime24.parquet": 3}


@pytest.mark.promise("compat:shell")
def test_the_printed_sources_are_given_to_the_command() -> None:
    parser = command_parser()
    for script in ("get_train_data", "aime24_data"):
        sources = runpy.run_path(str(ROOT / f"data/{script}.py"))["SOURCES"]
        given = parser.parse_args(["data", "prepare", *sources])
        assert given.aime24 == "hub:HuggingFaceH4/aime_2024"


@pytest.mark.promise("compat:shell")
def test_the_printed_training_command_is_understood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"][
        "ajet"
    ]
    module, _, name = entry.partition(":")
    assert getattr(importlib.import_module(module), name) is ajet
    monkeypatch.chdir(ROOT)
    words = shlex.split(printed("tuner")["train"].text)
    assert words.pop(0) == "ajet"
    assert ajet([*words, "--backbone=debug", "--print-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    config = load_train_config("tutorial/example_math_agent/math_agent.yaml")
    assert (shown["backbone"], shown["schedule"]["steps"]) == ("debug", config.schedule.steps)
    assert ajet([*words, "--backbone=trinity", "--print-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["backbone"], shown["loss"]["kl_coef"]) == ("trinity", config.loss.kl_coef)
    assert ajet(["--conf", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err
