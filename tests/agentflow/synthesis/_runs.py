"""Whole runs: their settings, their files."""

from collections.abc import Callable
from pathlib import Path

import anyio

from agentflow.journal import NewSeed
from agentflow.synthesis import PAIRS, REPORT, SURPLUS, TRAJECTORIES, TREES, Report, SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisRun, seeds_for

FILES = (PAIRS, SURPLUS, TRAJECTORIES, TREES, REPORT)
SMALL: dict[str, object] = {"max_depth": 3, "depth_threshold": 2, "number_of_seed": 3, "control": False}


def config_for(folder: Path, **settings: object) -> SynthesisConfig:
    """Return settings of a small run over the bundled corpus."""
    return SynthesisConfig.model_validate({**SMALL, "output_dir": str(folder), **settings})


async def run_to_the_end(
    config: SynthesisConfig, seeds: list[NewSeed] | None = None
) -> tuple[SynthesisRun, Report]:
    """Run a synthesis and return it with its report."""
    run = SynthesisRun(config)
    return run, await run.run(seeds_for(config) if seeds is None else seeds)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that happens by itself."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - there is nobody who would tell
            await anyio.sleep(0.005)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run."""
    return {name: (folder / name).read_bytes() for name in FILES}


def names(folder: Path) -> set[str]:
    """Return the file names of a directory."""
    return {path.name for path in folder.iterdir()}
