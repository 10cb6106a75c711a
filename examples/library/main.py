"""Command line of the examples."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.extras import extra_of, missing_extra
from examples.library.example import Example
from examples.library.plan import read_example_plan

if TYPE_CHECKING:
    from examples.library.report import ExampleFigures

__all__ = ["main"]


def main(example: Example, arguments: Sequence[str] | None = None) -> int:
    """Run an example from nothing, or resume it; print its table.

    :param arguments: those of the command line, if not given.
    """
    parser = argparse.ArgumentParser(prog=f"examples/{example.name}/run.py")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument(
        "--settings", default="settings", metavar="NAME", help="settings file NAME.yaml of the example"
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="DIR", help="only print the table of finished runs"
    )
    parser.add_argument("--curve", type=Path, metavar="FILE", help="write the curves of --table as SVG")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that override settings.yaml"
    )
    given = parser.parse_args(arguments)
    if given.curve and not given.table:
        parser.error("--curve needs --table DIR")
    try:
        if given.table:
            print(_table(given.table, given.curve))
        else:
            print(_run(example, given))
    except AgentFlowError as error:
        print(error, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if not extra_of(error.name or ""):
            raise
        print(missing_extra(f"examples/{example.name}", "train"), file=sys.stderr)
        return 1
    return 0


def _table(folders: Sequence[Path], curve: Path | None) -> str:
    # An example can be imported where the extras for training are not installed.
    from examples.library.report import draw_seeds, example_table

    seeds = [_figures_in(folder) for folder in folders]
    if curve is not None:
        try:
            curve.write_text(draw_seeds(seeds), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{curve}: can't be written: {error.strerror}") from error
    return example_table(seeds)


def _run(example: Example, given: argparse.Namespace) -> str:
    from examples.library.report import example_figures, example_table, write_report
    from examples.library.training import run_example

    seed: int = given.seed
    name = example.name if given.settings == "settings" else f"{example.name}_{given.settings}"
    folder: Path = given.out or Path("example_results", name, str(seed))
    plan = read_example_plan(example.folder / f"{given.settings}.yaml", given.overrides)
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {words}", flush=True)

    async def work() -> str:
        played = await run_example(example, plan, folder, seed, say=say)
        figures = folder / "figures.json"
        if figures.exists():
            return example_table([_figures_in(folder)])
        seconds = time.monotonic() - began
        return write_report(folder, example_figures(name, played, seed, seconds, folder))

    return anyio.run(work)


def _figures_in(folder: Path) -> "ExampleFigures":
    from examples.library.report import ExampleFigures

    path = folder / "figures.json"
    if not path.exists():
        raise ConfigurationError(f"{path}: it is missing; run the example with --out {folder} first")
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExampleFigures)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {error}; run the example with another --out") from error
