"""`kill -9` at random moments of branching rollouts and of trainings on branches: the bytes and bits of undisturbed ones."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from anyio import to_thread

from agentflow.exports import ExportFormat, export_run
from agentflow.serving import ModelServer
from tests._vllm import as_it_was
from tests.agentflow.cli._programs import environment
from tests.agentflow.learner.test_flywheel import POLL_SECONDS, WEIGHTS, watch
from tests.agentflow.rollouts._rollouts import QUESTIONS
from tests.system._branching import HELD, HOLD_AFTER
from tests.system._golden import contents_of

pytestmark = pytest.mark.timeout(900)

TASKS = 3
LEAVES = 8
STEPS = 2
Start = Callable[..., "subprocess.Popen[bytes]"]
"""Starts the command of a folder, or starts it again, with additional variables."""


def starting(folder: Path, command: str, settings: dict[str, Any]) -> Start:
    """Write the settings of a command to a new folder, and return what starts it there."""
    folder.mkdir()
    tasks = [
        {"id": f"q{number}", "question": question, "answer": answer}
        for number, (question, answer) in enumerate(QUESTIONS[:TASKS])
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def start(**variables: str) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "agentflow.cli", command, "config.yaml", "output_dir=out"]
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(words, cwd=folder, env=environment() | variables, stdout=log, stderr=log)

    return start


def finish(folder: Path, process: "subprocess.Popen[bytes]") -> float:
    """Wait for a successful end; return the CPU seconds it took."""
    seconds = watch(process)
    assert process.returncode == 0, (folder / "log").read_text(encoding="utf-8")[-3000:]
    return seconds


def kill_at_file(process: "subprocess.Popen[bytes]", file: Path) -> None:
    """Kill a process as soon as it has written a file or folder."""
    while not file.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_SECONDS)
    process.kill()
    process.wait()


ROLLOUT: dict[str, Any] = {
    "agent": "tests.system._branching:agent",
    "data_path": "tasks.jsonl",
    "available_tools": ["bash_run", "code_run"],
    "max_workers": TASKS,
    "max_turns": 8,
    "branching": {"width": 2, "leaves": LEAVES},
}


def rollout_files(folder: Path) -> dict[str, bytes]:
    """Return everything a rollout wrote and exports, without times."""
    files = dict(contents_of(folder / "out"))
    summary = json.loads((folder / "out/summary.json").read_bytes())
    files["summary.json"] = json.dumps(
        {name: value for name, value in summary.items() if name not in ("seconds", "wall_seconds")}
    ).encode()
    for format in (ExportFormat.TRL_SFT_TOKENS, ExportFormat.TRL_KTO):
        export_run(folder / "out", format, folder / format, take="all")
        files |= {f"{format}/{path}": content for path, content in contents_of(folder / format)}
    return files


def check_rollouts(folder: Path, dice: random.Random, kills: int) -> None:
    """Assert that a rollout with so many kills gives the files of one without."""
    finish(calm := folder / "calm", starting(calm, "rollout", ROLLOUT)())
    files = rollout_files(calm)
    results = [json.loads(line) for line in files["results.jsonl"].splitlines()]
    assert len({(line["task_id"], line["answer"]) for line in results}) == len(results) > TASKS
    assert b'"drawn":2' in files["trajectories.jsonl"], "equal continuations ran once"
    summary = json.loads(files["summary.json"])
    assert summary["branching"]["forks"]["fork"] >= TASKS
    calls = files["journal.db/entries"].count(b"/agent'")
    killed = folder / "killed"
    start = starting(killed, "rollout", ROLLOUT)
    for _ in range(kills):
        # Each life gets at most its part of the calls, so none ends before its kill.
        kill_at_file(start(**{HOLD_AFTER: str(dice.randint(0, calls // kills - 1))}), killed / HELD)
        (killed / HELD).unlink()
    finish(killed, start())
    assert rollout_files(killed) == files


def training_settings(server: ModelServer, model: Path) -> dict[str, Any]:
    """Settings of a training on branches with state."""
    return {
        "policy": {"model": str(model), "dtype": "float32", "device": "cpu", "threads": 1},
        "engine": {"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
        "tasks": {"data_path": "tasks.jsonl", "metric": "tests.system._branching:by_words"},
        "schedule": {
            "steps": STEPS,
            "epochs": None,
            "tasks_per_step": 2,
            "episodes_per_task": 4,
            "save_steps": 1,
        },
        "branching": {"width": 2},
        "loss": {"name": "flow_grpo", "kl_coef": 0.0, "baseline": "none", "divide_by_std": False},
        "episodes": {
            "max_turns": 2,
            "temperature": 1.0,
            "short_prompts": True,
            "resource_types": ["rag", "bash"],
            "planner_model": {"structured": "json_schema", "max_text_chars": 16, "max_tokens": 200},
        },
    }


def training_files(folder: Path) -> dict[str, bytes]:
    """Return the episodes and weights of a training."""
    out = folder / "out"
    paths = sorted([*out.glob("rollouts/*.gz"), *out.glob("policy/*")])
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def check_trainings(
    folder: Path, server: ModelServer, model: Path, dice: random.Random, kills: int, at_once: int
) -> None:
    """Assert that trainings with kills give the files of one without.

    :param kills: number of kills in all.
    :param at_once: maximum number of kills of one training.
    """
    settings = training_settings(server, model)
    calm = folder / "calm"
    seconds = finish(calm, starting(calm, "train", settings)())
    files = training_files(calm)
    assert files[f"policy/{WEIGHTS}"] != (model / WEIGHTS).read_bytes()
    assert sum(name.endswith(".gz") for name in files) == STEPS
    done = 0
    for number in range(2 * kills):
        if done >= kills:
            return
        killed = folder / f"killed-{number}"
        start = starting(killed, "train", settings)
        for life in range(min(at_once, kills - done)):
            process = start()
            if life == 0:
                # The step is made, its weights are written, and neither the engine nor a checkpoint has them.
                kill_at_file(process, killed / "out/weights/v000001")
            else:
                watch(process, dice.uniform(0.5, 0.95) * seconds)
            assert process.returncode in (0, -9), (killed / "log").read_text(encoding="utf-8")[-3000:]
            done += process.returncode == -9
        finish(killed, start())
        assert training_files(killed) == files
    assert done >= kills


@pytest.mark.promise("branching:killed")
def test_branching_rollouts_killed_at_random_moments_give_the_files_of_undisturbed_ones(
    tmp_path: Path,
) -> None:
    check_rollouts(tmp_path, random.Random(1), kills=3)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.promise("branching:killed")
def test_branching_rollouts_killed_many_times(tmp_path: Path) -> None:
    for seed, kills in enumerate((4, 8)):
        (tmp_path / str(seed)).mkdir()
        check_rollouts(tmp_path / str(seed), random.Random(seed), kills)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.promise("branching:killed")
async def test_trainings_on_branches_killed_many_times(vllm: ModelServer, tmp_path: Path) -> None:
    async with as_it_was(vllm) as model:
        await to_thread.run_sync(check_trainings, tmp_path, vllm, model, random.Random(3), 10, 3)
