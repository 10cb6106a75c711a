"""Run the attacks of `test_archive_attacks` as the current user and print what succeeded, as JSON."""

import json
import os
import sys
import tempfile
from pathlib import Path

import anyio

from agentflow.errors import CannotFork
from runtimes import InstanceSpec, Snapshot
from runtimes.process import ProcessRuntime
from tests.runtimes.process.test_archive_attacks import ATTACKS, REACH, archive, reading, serving

GIB = 1 << 30


async def attacks(runtime: ProcessRuntime) -> list[str]:
    """Return the archives that were accepted."""
    instance, accepted = await runtime.start(), list[str]()
    for what, entries in ATTACKS.items():
        try:
            await instance.restore(Snapshot(archive(*entries)))
        except ValueError:
            continue
        accepted.append(what)
    return accepted


async def bytes_of_holes(runtime: ProcessRuntime) -> int:
    """Return the size of a snapshot of 4 GiB of holes."""
    instance = await runtime.start()
    await instance.exec(["truncate", "-s", str(GIB), "a", "b", "c", "d"])
    snapshot = await instance.snapshot()
    await instance.restore(snapshot)
    assert (await instance.stat("d")).size == GIB
    return len(snapshot.archive)


async def reached(runtime: ProcessRuntime, folder: Path) -> str:
    """Return the errors of connecting to the host through a mounted folder, and the files of a folder behind a link."""
    instance = await runtime.start(InstanceSpec(mounts={"/home/agent/data/corpus": str(folder)}))
    with serving(folder / "socket"), reading(folder / "fifo"):
        done = await instance.run("python", REACH + "reach('data/corpus/socket'); write('data/corpus/fifo')")
    await instance.run("bash", "mv data d2; mkdir -p e/corpus; ln -s e data")
    try:
        fork = (await instance.fork()).instance
    except CannotFork:
        return done.stdout
    return done.stdout + " ".join(info.path for info in await fork.list("e/corpus"))


async def report() -> dict[str, object]:
    """Return the outcome of every attack."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        async with ProcessRuntime(preload=()) as runtime:
            return {
                "accepted": await attacks(runtime),
                "bytes": await bytes_of_holes(runtime),
                "reached": await reached(runtime, Path(name)),
            }


def main() -> None:
    """Print the report."""
    sys.stdout.write(json.dumps(anyio.run(report)))
