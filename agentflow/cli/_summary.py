"""Summary of a synthesis as text: counts, a sample with its path, the files."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.cli._output import buffered_console
from agentflow.synthesis import PAIRS, REPORT, TRAJECTORIES, TREES, Report
from agentflow.synthesis.pipeline import SynthesisRun, render_report

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 100
QUOTE_WIDTH = 160


def print_summary(run: SynthesisRun, report: Report) -> None:
    """Print it on stdout.

    :raises BrokenPipeError: if the reader has closed it.
    """
    with buffered_console(WIDTH) as console:
        if run.nothing_to_do:
            console.print("Nothing to do: every seed is finished. The files contain:", style="bold")
        console.print(render_report(report))
        folder = run.directory.folder
        _print_sample(console, folder)
        console.print(f"\nFiles in {folder}: {PAIRS}, {TRAJECTORIES}, {TREES}, {REPORT}")


def _print_sample(console: "Console", folder: Path) -> None:
    pair = next(_records(folder / PAIRS), None)
    if pair is None:
        return
    wanted = pair["trajectory_id"]
    path = next((one for one in _records(folder / TRAJECTORIES) if one["trajectory_id"] == wanted), None)
    console.print("\nOne of the questions", style="bold")
    console.print(f"  Q: {pair['question']}")
    console.print(f"  A: {pair['answer']}")
    numbers = _print_path(console, path) if path is not None else {}
    console.print("\nIts reasoning, with the evidence of each step", style="bold")
    for number, step in enumerate(pair["reasoning_steps"], 1):
        console.print(f"  {number}. {step['step']}")
        for citation in step["citations"]:
            place = numbers.get(citation["node_id"], "?")
            console.print(f"     [{place}] “{_short(citation['quote'])}”", style="dim")


def _print_path(console: "Console", path: Mapping[str, Any]) -> dict[str, str]:
    """Print the actions of a path and return the number of each node."""
    console.print(f"\nIts path, from the seed “{_short(path['seed_data'])}”", style="bold")
    numbers: dict[str, str] = {}
    for number, node in enumerate(path["nodes"]):
        numbers[node["node_id"]] = str(number)
        if node["action"] is not None:
            arguments = json.dumps(node["action"]["args"], ensure_ascii=False)
            console.print(f"  [{number}] {node['action']['tool']} {_short(arguments)}  ({node['verdict']})")
    return numbers


def _records(file: Path) -> Iterator[dict[str, Any]]:
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_WIDTH else f"{line[: QUOTE_WIDTH - 1]}…"
