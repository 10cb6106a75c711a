"""Many episodes at once against an endpoint that fails, and a rollout that is killed again and again."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from agentflow.rollout import RESULTS, TRAJECTORIES, RolloutConfig
from agentflow.testing import fake_endpoint
from tests.agentflow.cli._programs import environment
from tests.agentflow.rollout._rollouts import config_for, contents, lines, run_to_the_end, some_tasks

EPISODES = 256
WORKERS = 4


def faulty(folder: Path, url: str, **settings: object) -> RolloutConfig:
    """Many episodes of few turns."""
    return config_for(
        folder, model_name="fake", base_url=url, available_tools=["rag_search"], agent="single", max_workers=EPISODES,
        max_turns=6, **settings,
    )  # fmt: skip


@pytest.mark.promise("rollout:faults")
async def test_hundreds_of_episodes_at_once_lose_nothing_where_a_tenth_of_the_calls_fails(
    tmp_path: Path,
) -> None:
    async with fake_endpoint(faults=0.1, delay_ms=5, tool_turns=1) as url:
        _, summary = await run_to_the_end(faulty(tmp_path, url), some_tasks(EPISODES))
    results = lines(tmp_path, RESULTS)
    assert [result["task_id"] for result in results] == [task.id for task in some_tasks(EPISODES)]
    assert summary.results == EPISODES
    assert summary.failed == sum(not result["success"] for result in results)
    assert summary.failed <= EPISODES // 50, "calls are made again, and episodes too"
    # What a fault makes of an answer in free text is an answer, and comes early.
    assert all(1 <= result["calls"]["agent"] <= 2 for result in results if result["success"])
    assert len(lines(tmp_path, TRAJECTORIES)) == EPISODES


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.promise("rollout:faults")
async def test_memory_is_flat_however_long_it_goes_on(tmp_path: Path) -> None:
    process = psutil.Process()
    held: list[int] = []
    async with fake_endpoint(faults=0.1, delay_ms=20, tool_turns=3) as url:
        ends = time.monotonic() + 1800
        while time.monotonic() < ends:
            folder = tmp_path / str(len(held))
            _, summary = await run_to_the_end(faulty(folder, url), some_tasks(2 * EPISODES))
            assert summary.results == 2 * EPISODES
            held.append(process.memory_info().rss)
    half = len(held) // 2
    assert max(held[half:]) < 1.1 * max(held[2:half])


class Rollouts:
    """The same command, started again and again."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "tasks.jsonl").write_text(
            "\n".join(
                json.dumps({"id": f"t{n}", "question": f"What is thing {n}?", "answer": "x"})
                for n in range(12)
            )
        )
        self._folder = folder
        self._words = (
            "rollout", "--data=tasks.jsonl", f"base_url={url}", "model_name=fake", "available_tools=[rag_search]",
            "agent=single", f"max_workers={WORKERS}", "output_dir=out", "--json",
        )  # fmt: skip

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "agentflow.cli", *self._words]
        return subprocess.Popen(
            command, cwd=self._folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )


def asked(log: Path) -> list[str]:
    """What the endpoint was asked."""
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.mark.promise("rollout:kill")
async def test_a_rollout_that_is_killed_goes_on_and_asks_for_no_answer_that_it_has(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with fake_endpoint(delay_ms=30, tool_turns=3, log=log) as url:
        rollouts = Rollouts(tmp_path, url)
        for calls in (10, 30):
            with rollouts.start() as process:
                while len(asked(log)) < calls:
                    assert process.poll() is None, "it ended before it could be killed"
                    time.sleep(0.01)  # noqa: ASYNC251 - nobody else is there
                process.kill()
        with rollouts.start() as process:
            out, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        said = json.loads(out)
        assert (said["summary"]["results"], said["summary"]["failed"]) == (12, 0)
        before = contents(tmp_path / "out", RESULTS, TRAJECTORIES)
        times = Counter(asked(log))
        assert len(times) == 48, "12 tasks of 4 calls"
        assert sum(times.values()) - len(times) <= 2 * WORKERS, "only what was in flight is asked for again"
        with rollouts.start() as process:
            process.communicate(timeout=90)
        assert len(asked(log)) == sum(times.values()), "a finished rollout asks nothing"
    assert contents(tmp_path / "out", RESULTS, TRAJECTORIES) == before
