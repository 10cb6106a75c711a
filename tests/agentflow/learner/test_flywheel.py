"""Rounds of a synthesis and a training on a real vLLM, with a tiny planner of random weights, also killed at random."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import yaml
from anyio import to_thread

from agentflow.learner import ROUNDS, guidance, read_rounds, steps_of_pairs
from agentflow.serving import ModelServer
from agentflow.trace import Task, digest
from tests._vllm import as_it_was
from tests.agentflow.cli._programs import environment

pytestmark = pytest.mark.timeout(900)

WEIGHTS = "model.safetensors"
POLL_SECONDS = 0.02
"""Interval between two looks at a process."""


def by_words(answer: str, task: Task) -> float:
    """A reward that follows from the answer alone and is never 0: without a baseline every step changes the weights."""
    return 0.5 + 0.5 * (int(digest([answer, task.id]), 16) % 2)


def settings(server: ModelServer, model: Path) -> dict[str, object]:
    """Two rounds of two seeds over the bundled corpus; every pair is in the window."""
    return {
        "number_of_seed": 6,
        "max_depth": 3,
        "branching_factor": 2,
        "depth_threshold": 1,
        "min_depth": 1,
        "min_reasoning_steps": 0,
        "rounds": 2,
        "held_out": 0.3,
        "difficulty": {"attempts": 2, "window": [0, 1]},
        "learner": {
            "policy": {"model": str(model), "dtype": "float32", "device": "cpu", "threads": 1},
            "engine": {"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
            "tasks": {"metric": f"{__name__}:by_words"},
            "schedule": {"steps": 1, "tasks_per_step": 2, "episodes_per_task": 2},
            "loss": {"name": "flow_grpo", "kl_coef": 0.0, "baseline": "none", "divide_by_std": False},
            "episodes": {
                "max_turns": 2,
                "temperature": 1.0,
                "short_prompts": True,
                "planner_model": {"structured": "json_schema", "max_text_chars": 16, "max_tokens": 200},
            },
        },
    }


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the command, or start it again."""
    words = [sys.executable, "-m", "agentflow.cli", "synth", "flywheel.yaml", "output_dir=out"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(words, cwd=folder, env=environment(), stdout=log, stderr=log)


def watch(process: "subprocess.Popen[bytes]", kill_at: float = math.inf) -> float:
    """Wait until the process has ended, or kill it once it has used that much CPU; return what it used."""
    used = 0.0
    while True:
        try:
            process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            used = sum(psutil.Process(process.pid).cpu_times()[:2])
            if used >= kill_at:
                process.kill()
        else:
            return used


def files_of(folder: Path) -> Mapping[str, bytes]:
    """Return the files that neither time nor kills may change: pairs, trees, episodes, weights."""
    out = folder / "out"
    names = (
        "held-out/*.jsonl",
        "round-*/*.jsonl",
        "measured/*/*.gz",
        "training/rollouts/*.gz",
        "training/policy/*",
        ROUNDS,
    )
    return {
        str(path.relative_to(out)): path.read_bytes() for name in names for path in sorted(out.glob(name))
    }


def torment(folder: Path, dice: random.Random, kills: int, seconds: float) -> int:
    """Run it to its end in spite of kills, at most so many; return their number.

    :param seconds: CPU that an undisturbed run uses.
    """
    done = 0
    for _ in range(kills):
        watch(process := start(folder), dice.uniform(0.2, 0.9) * seconds)
        assert process.returncode in (0, -9), log_of(folder)
        done += process.returncode == -9
    watch(process := start(folder))
    assert process.returncode == 0, log_of(folder)
    return done


def log_of(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8")[-3000:]


def check_rounds(folder: Path) -> None:
    """Assert that versions follow from steps, that steps use the pairs of their rounds, and that these guide the next one."""
    result = read_rounds(folder / "out")
    first, second = result.rounds
    assert (first.version, second.version) == (0, first.next_version)
    assert first.pairs + second.pairs, "the planner found nothing to ask about"
    used = steps_of_pairs(folder / "out", second.steps)
    chosen = [*first.chosen, *second.chosen]
    assert set(used) <= set(chosen)
    assert all(step > first.steps for id, steps in used.items() if id in second.chosen for step in steps)
    for finished in result.rounds:
        report = json.loads((folder / f"out/round-{finished.number}/report.json").read_bytes())
        assert report["engines"]["planner"] == f"policy-{finished.version}"
    tips = yaml.safe_load((folder / "out/round-2/settings.yaml").read_text(encoding="utf-8"))
    lines = (folder / "out/round-1/synthesized_qa.jsonl").read_bytes().splitlines()
    pairs = [json.loads(line) for line in lines]
    said = [
        (pair["metadata"]["kind"], pair["metadata"]["hops"], first.rates[pair["qa_id"]])
        for pair in pairs
        if pair["qa_id"] in first.rates
    ]
    assert tips["sampling_tips"] == tips["synthesis_tips"] == "\n".join(guidance(said, (0, 1)))


async def compare(server: ModelServer, folder: Path, *, seed: int, wanted: int, at_once: int) -> None:
    """Assert that runs with kills give the files of one without.

    :param wanted: number of kills in all.
    :param at_once: maximum number of kills of a run.
    """
    async with as_it_was(server) as model:

        def new(name: str) -> Path:
            (folder / name).mkdir()
            (folder / name / "flywheel.yaml").write_text(
                yaml.safe_dump(settings(server, model)), encoding="utf-8"
            )
            return folder / name

        seconds = await to_thread.run_sync(watch, process := start(calm := new("calm")))
        assert process.returncode == 0, log_of(calm)
        check_rounds(calm)
        files = files_of(calm)
        assert files[f"training/policy/{WEIGHTS}"] != (model / WEIGHTS).read_bytes()
        dice, done = random.Random(seed), 0
        for number in range(wanted):
            if done < wanted:
                killed = new(f"killed-{number}")
                done += await to_thread.run_sync(torment, killed, dice, at_once, seconds)
                assert files_of(killed) == files
        assert done >= wanted


@pytest.mark.promise("supervisor:flywheel")
@pytest.mark.promise("supervisor:flywheel:kills")
async def test_rounds_that_are_killed_give_the_pairs_trees_measurements_and_weights_of_undisturbed_ones(
    vllm: ModelServer, tmp_path: Path
) -> None:
    await compare(vllm, tmp_path, seed=1, wanted=1, at_once=1)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.promise("supervisor:flywheel:kills")
async def test_ten_kills(vllm: ModelServer, tmp_path: Path) -> None:
    await compare(vllm, tmp_path, seed=2, wanted=10, at_once=3)


@pytest.mark.promise("supervisor:flywheel:window")
def test_tips_name_the_kinds_of_questions_that_are_too_easy_too_hard_and_right() -> None:
    rates = [("bridge", 2, 1.0), ("bridge", 2, 0.9), ("bridge", 3, 0.25), ("follow_up", 1, 0.0)]
    assert guidance(rates, (0.25, 0.75)) == [
        "Look for more of: bridge over 3 documents.",
        "Too easy, look for what leads further: bridge over 2 documents.",
        "Too hard, look for simpler ones: follow up over 1 document.",
    ]
    assert guidance([], (0.25, 0.75)) == []
