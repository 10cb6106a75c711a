"""Outages of the model while a run works: nothing of them is in the files, and the same command finishes the run."""

import json
import re
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

import anyio
import pytest

from agentflow.errors import RunStopped, StopCause
from agentflow.journal import NewSeed
from agentflow.models import Call, Completion
from agentflow.models._model import HttpModel
from agentflow.rollouts import RESULTS, TRAJECTORIES, RolloutRun
from agentflow.synthesis.pipeline import SynthesisRun
from tests.agentflow.cli._programs import environment
from tests.agentflow.rollouts import _rollouts
from tests.agentflow.runs._outages import Outage, unsteady_endpoint
from tests.agentflow.synthesis import _runs
from tests.behaviour._tree import ROOT

LEFT = re.compile(r"(\d+) of (\d+) (?:seed|task)s? (?:is|are) left: [^\n]*run the same command[^\n]*")

Files: TypeAlias = dict[str, bytes]
Work: TypeAlias = Callable[[Path, str, int, float], Awaitable[Files]]
"""Runs a command with a number of seeds in a folder, with a time limit of a call, and returns its files."""


def seeds(count: int) -> list[str]:
    """Return seeds with names that the bundled corpus has, so that trees grow."""
    lines = (ROOT / "mcp_servers/rag/corpus/documents.jsonl").read_text(encoding="utf-8").splitlines()
    titles = [json.loads(line)["title"] for line in lines]
    return [f"{' '.join(titles[number : number + 9])}." for number in range(count)]


async def grow(folder: Path, url: str, count: int, call_seconds: float = 60) -> Files:
    depth = 3 if count < 10 else 2
    config = _runs.config_for(
        folder,
        available_tools=["rag_search"],
        max_depth=depth,
        max_attempts=2,
        model_name="fake",
        base_url=url,
        call_seconds=call_seconds,
    )
    await SynthesisRun(config).run([NewSeed(seed) for seed in seeds(count)])
    return _runs.contents(folder)


async def solve(folder: Path, url: str, count: int, call_seconds: float, **settings: object) -> Files:
    shared: dict[str, object] = {
        "model_name": "fake", "base_url": url, "max_attempts": 2, "call_seconds": call_seconds,
    }  # fmt: skip
    judged: dict[str, object] = {"evaluation_metric": "llm_judgement", "available_tools": ["rag_search"]}
    config = _rollouts.config_for(folder, **{**shared, **judged, **settings})
    await RolloutRun(config).run(_rollouts.assigned(config, _rollouts.some_tasks(count)))
    return _rollouts.contents(folder, RESULTS, TRAJECTORIES)


async def solve_with_one_agent(folder: Path, url: str, count: int, call_seconds: float) -> Files:
    return await solve(folder, url, count, call_seconds, agent="single")


def finished(folder: Path) -> dict[int, bytes]:
    """Return the results of the finished seeds in the journal."""
    with closing(sqlite3.connect(folder / "journal.db")) as journal:
        return dict(journal.execute("SELECT seed, body FROM agentflow_harvests").fetchall())


class Undisturbed(NamedTuple):
    """A run without an outage."""

    files: Files
    """Its files."""
    requests: int
    """Number of its requests."""
    results: dict[int, bytes]
    """Results of its seeds in its journal."""


_undisturbed: dict[tuple[Work, int], Undisturbed] = {}


async def without_outage(folder: Path, work: Work, count: int) -> Undisturbed:
    """Return the run that nothing disturbs; it is made once for all tests."""
    if (work, count) not in _undisturbed:
        async with unsteady_endpoint() as endpoint:
            files = await work(folder / "undisturbed", endpoint.url, count, 60)
            results = finished(folder / "undisturbed")
            _undisturbed[work, count] = Undisturbed(files, endpoint.requests, results)
    return _undisturbed[work, count]


async def check(folder: Path, work: Work, count: int, outage: Outage, share: float) -> None:
    """Fail after a share of the requests, then answer again, and compare with an undisturbed run."""
    undisturbed = await without_outage(folder, work, count)
    async with unsteady_endpoint() as endpoint:

        async def run(*, begins: int | None = None) -> Files:
            endpoint.fail(None if begins is None else outage, begins=begins or 1)
            waits = outage is Outage.SILENT and begins is not None
            return await work(folder / "disturbed", endpoint.url, count, 0.3 if waits else 60)

        for begins in (1 + int(share * undisturbed.requests), 1):
            with pytest.raises(RunStopped) as stopped:
                await run(begins=begins)
            assert stopped.value.cause is StopCause.MODEL
            left = LEFT.fullmatch(stopped.value.message)
            assert left is not None, stopped.value.message
            done = finished(folder / "disturbed")
            assert (int(left[1]), int(left[2])) == (count - len(done), count)
            if work is grow:
                assert done.items() <= undisturbed.results.items()
        assert await run() == undisturbed.files
        assert await run(begins=1) == undisturbed.files, "nothing is left to do"


@pytest.mark.promise("supervisor:outage")
@pytest.mark.parametrize("outage", Outage, ids=lambda outage: outage.name)
async def test_after_an_outage_the_same_command_gives_the_files_of_an_undisturbed_run(
    outage: Outage, tmp_path: Path
) -> None:
    await check(tmp_path, grow, 3, outage, Random(outage).random())


@pytest.mark.promise("supervisor:outage")
async def test_an_outage_leaves_most_of_twenty_seeds_for_the_same_command(tmp_path: Path) -> None:
    await check(tmp_path, grow, 20, Outage.BROKEN, 0.4)


@pytest.mark.promise("rollout:outage")
@pytest.mark.parametrize(
    ("work", "share"),
    [(solve, 0.3), (solve_with_one_agent, 0.5), (solve_with_one_agent, 0.9)],
    ids=["team", "alone", "judge"],
)
async def test_a_rollout_survives_an_outage(work: Work, share: float, tmp_path: Path) -> None:
    await check(tmp_path, work, 6, Outage.BROKEN, share)


async def check_window(
    folder: Path, work: Work, count: int, outage: Outage, begins: int, length: int
) -> None:
    """Fail for some requests while the run works, repeat the command until nothing is left, and compare."""
    undisturbed = (await without_outage(folder, work, count)).files
    async with unsteady_endpoint() as endpoint:
        endpoint.fail(outage, begins=begins, ends=begins + length)
        for _ in range(1 + length):
            try:
                disturbed = await work(folder / "disturbed", endpoint.url, count, 60)
            except RunStopped as stopped:
                assert LEFT.fullmatch(stopped.message), stopped.message
            else:
                break
        else:
            pytest.fail("tasks are always left")
    assert disturbed == undisturbed


@pytest.mark.promise("supervisor:outage")
@pytest.mark.promise("rollout:outage")
@pytest.mark.parametrize("work", [grow, solve])
async def test_an_outage_that_ends_while_the_run_works_changes_no_file(work: Work, tmp_path: Path) -> None:
    await check_window(tmp_path, work, 6, Outage.BROKEN, begins=9, length=9)


@pytest.mark.promise("supervisor:outage")
async def test_a_run_killed_during_an_outage_is_finished_by_the_same_command(tmp_path: Path) -> None:
    async with unsteady_endpoint() as endpoint:
        undisturbed = await grow(tmp_path / "undisturbed", endpoint.url, 6)
        half = endpoint.requests // 2
        seeds_file = tmp_path / "seeds.jsonl"
        seeds_file.write_text("".join(f"{json.dumps(seed)}\n" for seed in seeds(6)))
        words = (
            "synth", f"base_url={endpoint.url}", "model_name=fake", f"seeds_file={seeds_file}", "output_dir=disturbed",
            "max_depth=3", "depth_threshold=2", "control=false", "available_tools=[rag_search]",
        )  # fmt: skip
        command = [sys.executable, "-m", "agentflow.cli", *words]
        endpoint.fail(Outage.BROKEN, begins=half)
        with anyio.fail_after(60):
            # With all its attempts and pauses it is still at work when the first ones have failed.
            async with await anyio.open_process(
                command, cwd=tmp_path, env=environment(), stderr=None
            ) as killed:
                while endpoint.requests < half + 3:
                    assert killed.returncode is None, "it ended before it could be killed"
                    await anyio.sleep(0.005)
                killed.kill()
        endpoint.fail(Outage.BROKEN)
        again = await anyio.run_process(
            [*command, "max_attempts=1"], cwd=tmp_path, env=environment(), check=False
        )
        [line] = [each for each in again.stderr.decode().splitlines() if each.startswith("agentflow: ")]
        assert again.returncode == 3
        assert LEFT.fullmatch(line.removeprefix("agentflow: ")), line
        endpoint.fail(None)
        assert await grow(tmp_path / "disturbed", endpoint.url, 6) == undisturbed


@pytest.mark.promise("supervisor:outage")
async def test_a_model_that_crashes_loses_no_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls = HttpModel.complete, count(1)

    async def crash(model: HttpModel, call: Call[Any]) -> Completion[Any]:
        if next(calls) > 30:
            raise KeyError("choices")
        return await answer(model, call)

    async with unsteady_endpoint() as endpoint:
        undisturbed = await grow(tmp_path / "undisturbed", endpoint.url, 6)
        with monkeypatch.context() as patch:
            patch.setattr(HttpModel, "complete", crash)
            with pytest.raises(RunStopped, match=r"left: .*crashed: KeyError: 'choices'") as stopped:
                await grow(tmp_path / "disturbed", endpoint.url, 6)
        assert stopped.value.cause is StopCause.MODEL
        assert await grow(tmp_path / "disturbed", endpoint.url, 6) == undisturbed


@pytest.mark.soak
@pytest.mark.promise("supervisor:outage")
@pytest.mark.promise("rollout:outage")
@pytest.mark.parametrize("seed", range(60))
async def test_an_outage_at_any_request_changes_no_file(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    work, count, outage = (
        dice.choice([grow, solve, solve_with_one_agent]),
        dice.choice([6, 40]),
        dice.choice(list(Outage)),
    )
    await check(tmp_path / "once", work, count, outage, dice.random())
    if outage is not Outage.SILENT:
        await check_window(tmp_path / "window", work, count, outage, dice.randint(1, 30), dice.randint(2, 60))
