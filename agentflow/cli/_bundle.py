"""`agentflow bundle`: write runs as a folder with a page that opens without a server."""

import argparse
import sys
from pathlib import Path

from agentflow._terminal import printable
from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit, print_json
from agentflow.dashboard import PageData, write_bundle
from agentflow.inspection import open_runs
from agentflow.telemetry import Level


def run_bundle(arguments: argparse.Namespace) -> int:
    """Write the bundle and return the exit status.

    :raises AgentFlowError: one line, if the runs can't be read or the folder can't be written.
    """
    set_up_logging(Level.WARNING)
    with open_runs(arguments.place, journal=arguments.journal) as runs:
        summary = write_bundle(
            PageData(runs),
            Path(arguments.output),
            seeds=arguments.seeds,
            blobs=not arguments.no_blobs,
            prompts=not arguments.no_prompts,
        )
    if arguments.json:
        print_json(summary)
        return Exit.DONE
    line = (
        f"{_count(summary.runs, 'run')} with {_count(summary.seeds, 'seed')} and {_count(summary.nodes, 'node')} "
        f"in {summary.folder} "
        f"({summary.bytes / 1e6:.1f} MB); open {Path(summary.folder) / 'index.html'}"
    )
    sys.stdout.write(f"{printable(line)}\n")
    return Exit.DONE


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
