"""Acknowledged writes survive any kill."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow.journal import open_journal
from tests.agentflow.journal._recording import Note, take_over

ROOT = Path(__file__).resolve().parents[3]


def record_and_kill(url: str, after: int) -> list[str]:
    """Let a process record, kill it some entries later, and return the keys of all acknowledged entries."""
    command = [sys.executable, "-m", "tests.agentflow.journal._recording", url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(after)]
        process.kill()
        said += process.stdout.readlines()
    assert process.returncode == -9
    return [line.decode().strip() for line in said]


async def check_all_there(url: str, keys: list[str]) -> None:
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        seed = await take_over(run, "afterwards")
        page = await run.open_page(seed)
        assert [key for key in keys if page.recall(key, Note) != Note(key * 20)] == []
        await run.release("afterwards")


@pytest.mark.promise("journal:kill")
async def test_entries_acknowledged_by_a_killed_process_are_kept_and_the_next_one_continues_at_once(
    url: str,
) -> None:
    keys: list[str] = []
    moments = random.Random(4)
    for _ in range(5):
        keys += record_and_kill(url, moments.randint(1, 800))
        await check_all_there(url, keys)


@pytest.mark.soak
@pytest.mark.promise("journal:kill")
async def test_a_hundred_kills(url: str) -> None:
    keys: list[str] = []
    moments = random.Random(5)
    for _ in range(100):
        keys += record_and_kill(url, moments.randint(1, 3000))
        await check_all_there(url, keys)
