"""The live view of large runs, and its cost to a run that grows.

Run `python benchmarks/view.py [--check] [--only tree|frames|seeds|viewers] [--nodes N] [--seeds N]`: prints a table, and as the last line one JSON object. With
`--check` it exits with 1 if a limit is missed. The viewer is a process of its own, as `agentflow view` starts it. Ten viewers, half of
them on the page of the run and half on that of a seed, load after each change what these pages load. A run is slowed by them as much
as its seconds with them exceed those without: the median of pairs that run one after the other, in both orders.
"""

import argparse
import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import anyio
import anyio.to_thread
import msgspec

from agentflow.dashboard import api_path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

VIEWERS = 10
ROUNDS = 7
GROWN = 40
SUBJECTS = ("the ferries", "the lighthouses", "the harbour of Orm")
LIMITS = {
    "seconds to the first rows of a large tree": 1.0,
    "MB by which the server grew": 150.0,
    "seconds to the first rows in Chromium": 1.0,
    "ms of a frame while scrolling, 95 %": 100.0,
    "ms of a frame while scrolling, longest": 100.0,
    "seconds to a new node on the page, longest": 2.0,
    "rows in the document": 300.0,
    "seconds to the list of many seeds": 1.0,
    "seconds of a run with ten viewers / without": 1.05,
    "CPU seconds of a run with ten viewers / without": 1.05,
}


class LargeRun(NamedTuple):
    """Output directory of a made run."""

    folder: Path
    """Its folder."""
    seeds: int
    """Number of seeds."""
    nodes: int
    """Nodes of each seed."""


def make_run(folder: Path, seeds: int, nodes: int, chars: int) -> LargeRun:
    """Write the journal of a finished run whose trees have this many nodes."""
    folder.mkdir()
    importlib.import_module("benchmarks._large_runs").write_large_run(
        folder / "journal.db", seeds, nodes, chars
    )
    return LargeRun(folder, seeds, nodes)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Viewer:
    """A process of `agentflow view`, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], client: aiohttp.ClientSession) -> None:
        self._process = process
        self._client = client
        self.before = self.memory()
        self.changes = 0
        """Changes that it was told of."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the process so far."""
        fields = (
            Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the largest memory of the process so far, in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1000

    async def load(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return an answer."""
        async with self._client.get(f"/api/{path}") as answer:
            body = await answer.read()
            assert answer.status == 200, body
            return msgspec.json.decode(body)

    async def watch(self, run: str, seed: str | None) -> None:
        """Load what an open page loads after each change, until cancelled.

        :param seed: id of the seed whose page it is; `None`: the page of the run.
        """
        path = api_path("r", run, "events", **({} if seed is None else {"seed": seed}))
        async with self._client.get(f"/api/{path}", timeout=aiohttp.ClientTimeout(total=None)) as stream:
            async for line in stream.content:
                if not line.startswith(b"data: "):
                    continue
                if seed is None:
                    await self.load(api_path("r", run))
                    await self.load(api_path("r", run, "seeds"))
                elif spots := json.loads(line[6:])["spots"]:
                    await self.load(api_path("r", run, "s", seed, "skeleton"))
                    await self.load(api_path("r", run, "s", seed, "node", spot=spots[0]))
                self.changes += 1


@asynccontextmanager
async def viewer(place: Path, clients: int = 1) -> AsyncGenerator[list[Viewer]]:
    """Yield clients of one viewer."""
    command = [sys.executable, "-m", "agentflow.cli", "view", str(place), "--no-open", "--json"]
    use_link = importlib.import_module("tests.agentflow.dashboard._access").use_link
    process = await anyio.to_thread.run_sync(_start, command)
    assert process.stdout is not None
    try:
        async with AsyncExitStack() as stack:
            opened: list[Viewer] = []
            for _ in range(clients):
                known = json.loads(await anyio.to_thread.run_sync(process.stdout.readline))
                headers = await anyio.to_thread.run_sync(use_link, known["link"])
                client = await stack.enter_async_context(aiohttp.ClientSession(known["url"], headers=headers))
                opened.append(Viewer(process, client))
            yield opened
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


async def large_tree(run: LargeRun) -> dict[str, float]:
    """Open the page of one large tree."""
    async with viewer(run.folder) as (page,):
        started = time.perf_counter()
        (summary,) = await page.load("runs")
        (seed,) = await page.load(api_path("r", summary["id"], "seeds"))
        of_seed = ("r", summary["id"], "s", seed["id"])
        skeleton = await page.load(api_path(*of_seed, "skeleton"))
        assert len(skeleton["spots"]) == run.nodes + 1, len(skeleton["spots"])
        rows = await page.load(api_path(*of_seed, "nodes", spots=",".join(skeleton["spots"][1:61])))
        first = time.perf_counter() - started
        assert len(rows) == 60
        scrolled: list[float] = []
        for start in range(0, run.nodes, run.nodes // 20):
            started = time.perf_counter()
            await page.load(
                api_path(*of_seed, "nodes", spots=",".join(skeleton["spots"][start + 1 : start + 61]))
            )
            scrolled.append(time.perf_counter() - started)
        await page.load(api_path(*of_seed, "node", spot=skeleton["spots"][-1]))
        return {
            "seconds to the first rows of a large tree": first,
            "ms to 60 rows elsewhere in it": 1000 * median(scrolled),
            "MB by which the server grew": page.memory() - page.before,
        }


async def frames(run: LargeRun) -> dict[str, float]:
    """Scroll the page of one large tree in a real Chromium."""
    from benchmarks._view_frames import measure_frames

    seen = await measure_frames(run.folder / "journal.db")
    took, meanwhile = sorted(seen.frames), sorted(seen.growth_frames)
    return {
        "seconds to the first rows in Chromium": seen.opening,
        "ms of a frame while scrolling, 95 %": took[len(took) * 95 // 100],
        "ms of a frame while scrolling, longest": took[-1],
        "ms of a frame while it grows, 95 %": meanwhile[len(meanwhile) * 95 // 100],
        "ms of a frame while it grows, longest": meanwhile[-1],
        "seconds to a new node on the page, longest": max(seen.growth),
        "rows in the document": seen.rows,
    }


async def many_seeds(run: LargeRun) -> dict[str, float]:
    """Open the list of a run with many seeds."""
    async with viewer(run.folder) as (page,):
        started = time.perf_counter()
        (summary,) = await page.load("runs")
        seeds = await page.load(api_path("r", summary["id"], "seeds"))
        took = time.perf_counter() - started
        assert summary["seeds"]["waiting"] + summary["seeds"]["done"] == run.seeds
        assert len(seeds) == min(run.seeds, 200)
        return {"seconds to the list of many seeds": took, "MB by which it grew": page.memory() - page.before}


class RunSeconds(NamedTuple):
    """Duration of a run."""

    wall: float
    """Seconds."""
    cpu: float
    """CPU seconds of its processes."""


async def slowed(folder: Path) -> dict[str, float]:
    """Grow trees beside a viewer without pages and beside ten open pages, in pairs."""
    pairs: list[dict[int, RunSeconds]] = []
    served: list[float] = []
    changes: list[int] = []
    for number in range(ROUNDS):
        pair: dict[int, RunSeconds] = {}
        for watching in (0, VIEWERS) if number % 2 else (VIEWERS, 0):
            place = folder / f"grown-{number}-{watching}"
            await _grow(place, 1)
            async with viewer(place, VIEWERS) as pages:
                (summary,) = await pages[0].load("runs")
                before = pages[0].cpu_seconds()
                async with anyio.create_task_group() as tasks:
                    for place_of_page, page in enumerate(pages[:watching]):
                        seed = "s0" if place_of_page % 2 else None
                        tasks.start_soon(page.watch, summary["id"], seed)
                    pair[watching] = await _grow(place, GROWN)
                    tasks.cancel_scope.cancel()
                if watching:
                    served.append((pages[0].cpu_seconds() - before) / pair[watching].wall)
                    changes += [page.changes for page in pages]
        pairs.append(pair)
    return {
        "seconds of a run with ten viewers / without": median(
            pair[VIEWERS].wall / pair[0].wall for pair in pairs
        ),
        "CPU seconds of a run with ten viewers / without": median(
            pair[VIEWERS].cpu / pair[0].cpu for pair in pairs
        ),
        "seconds of a run without viewers": median(pair[0].wall for pair in pairs),
        "CPU seconds of the viewer per second": median(served),
        "changes that a page was told of": median(changes),
    }


async def _grow(folder: Path, seeds: int) -> RunSeconds:
    """Grow seeds in a process of its own."""
    file = folder.with_suffix(".jsonl")
    await anyio.Path(file).write_text(
        "".join(
            json.dumps({"content": f"Explore {SUBJECTS[number % 3]}", "id": f"s{number}"}) + "\n"
            for number in range(seeds)
        )
    )
    words = [
        "max_depth=4",
        "depth_threshold=2",
        f"seeds_file={file}",
        "control=false",
        f"output_dir={folder}",
    ]
    command = [sys.executable, "-m", "agentflow.cli", "synth", *words]
    return await anyio.to_thread.run_sync(_measure, command, folder.with_suffix(".log"))


def _measure(command: Sequence[str], log: Path) -> RunSeconds:
    """Run a program to its end and return its seconds, with those of its children."""
    started = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, log.read_text()
    return RunSeconds(time.perf_counter() - started, used.ru_utime + used.ru_stime)


def main() -> int:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description="Measure the live view.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    parser.add_argument("--only", choices=("tree", "frames", "seeds", "viewers"), help="measure a part")
    parser.add_argument("--nodes", type=int, default=100_000, help="nodes of the large tree")
    parser.add_argument(
        "--seeds", type=int, default=1000, help="seeds of the large run, with 1,000 nodes each"
    )
    given = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if given.only in (None, "tree", "frames"):
            tree = make_run(folder / "tree", 1, given.nodes, 1200)
            if given.only != "frames":
                figures |= asyncio.run(large_tree(tree))
            if given.only != "tree":
                figures |= asyncio.run(frames(tree))
        if given.only in (None, "seeds"):
            figures |= asyncio.run(many_seeds(make_run(folder / "seeds", given.seeds, 1000, 100)))
        if given.only in (None, "viewers"):
            figures |= asyncio.run(slowed(folder))
    met = True
    for name, figure in figures.items():
        limit = LIMITS.get(name)
        good = limit is None or figure <= limit
        met = met and good
        print(
            f"{name:<44} {figure:9.3f}   {'' if limit is None else f'<= {limit:g}   ' + ('ok' if good else 'MISSED')}"
        )
    print(
        json.dumps(
            {"benchmark": "view", "met": met, **{name: round(figure, 3) for name, figure in figures.items()}}
        )
    )
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
