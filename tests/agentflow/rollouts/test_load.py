"""Many episodes at once against an endpoint that fails, and a rollout that is killed again and again."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import aiohttp
import psutil
import pytest

from agentflow.rollouts import RESULTS, TRAJECTORIES, RolloutConfig
from agentflow.testing import fake_endpoint
from tests.agentflow.cli._programs import environment
from tests.agentflow.rollouts._rollouts import config_for, contents, lines, run_to_the_end, some_tasks

EPISODES = 256
WORKERS = 4
TASKS = 12
CALLS = 4
"""Of each of these tasks."""


def faulty(folder: Path, url: str, **settings: object) -> RolloutConfig:
    """Many episodes of few turns."""
    return config_for(
        folder, model_name="fake", base_url=url, available_tools=["rag_search"], agent="single", max_workers=EPISODES,
        max_turns=6, **settings,
    )  # fmt: skip


@pytest.mark.promise("rollout:faults")
async def test_hundreds_of_concurrent_episodes_lose_nothing_if_a_tenth_of_calls_fail(
    tmp_path: Path,
) -> None:
    async with fake_endpoint(faults=0.1, delay_ms=5, tool_turns=1) as url:
        # Whose tries fail follows from who comes first; so many in a row never do.
        _, summary = await run_to_the_end(faulty(tmp_path, url, max_attempts=10), some_tasks(EPISODES))
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
async def test_memory_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
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
                for n in range(TASKS)
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


def asked(log: Path) -> list[bytes]:
    """Return the requests to the endpoint."""
    return log.read_bytes().splitlines() if log.exists() else []


def call_of(body: bytes) -> tuple[str, int]:
    """Return the task of a request, and the number of the call."""
    messages = json.loads(body)["messages"]
    return messages[1]["content"], 1 + sum(message["role"] == "assistant" for message in messages)


def answers_in(folder: Path, copy: Path) -> set[tuple[str, int]]:
    """The calls whose answers a rollout that was killed has on disk; its own journal is left as it is."""
    shutil.copytree(folder, copy)
    with closing(sqlite3.connect(copy / "journal.db")) as journal:
        rows = journal.execute("SELECT seed, key FROM agentflow_entries WHERE key LIKE '%/agent'").fetchall()
    return {(f"What is thing {seed}?", int(key.split("/")[1])) for seed, key in rows}


@pytest.mark.promise("rollout:kill")
async def test_a_killed_rollout_resumes_without_repeating_recorded_calls(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    kills = (10, 30)
    before: list[tuple[int, set[tuple[str, int]]]] = []
    # Without an answer to the last ones it can't end before it is killed, however late that is.
    async with (
        fake_endpoint(delay_ms=30, tool_turns=CALLS - 1, log=log, hold_after=kills[-1]) as url,
        aiohttp.ClientSession() as http,
    ):
        rollouts = Rollouts(tmp_path, url)
        for calls in kills:
            with rollouts.start() as process:
                while len(asked(log)) < calls:
                    assert process.poll() is None, "it ended before it could be killed"
                    time.sleep(0.01)  # noqa: ASYNC251 - nobody else is there
                process.kill()
            before.append((len(asked(log)), answers_in(tmp_path / "out", tmp_path / f"killed-{calls}")))
        await http.get(f"{url.removesuffix('/v1')}/release")
        with rollouts.start() as process:
            out, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        said = json.loads(out)
        assert (said["summary"]["results"], said["summary"]["failed"]) == (TASKS, 0)
        files = contents(tmp_path / "out", RESULTS, TRAJECTORIES)
        requests = asked(log)
        for then, answered in before:
            assert answered <= set(map(call_of, requests[:then]))
            assert answered.isdisjoint(map(call_of, requests[then:]))
        times = Counter(requests)
        assert len(times) == TASKS * CALLS
        again = len(requests) - len(times)
        assert again <= len(kills) * WORKERS * CALLS, "of a task that was done nothing is asked for again"
        with rollouts.start() as process:
            process.communicate(timeout=90)
        assert len(asked(log)) == len(requests), "a finished rollout asks nothing"
    assert contents(tmp_path / "out", RESULTS, TRAJECTORIES) == files
