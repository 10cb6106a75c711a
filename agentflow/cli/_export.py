"""`agentflow export` and `agentflow bundle`: a run as a data set for other trainers, or as a page that opens without a server."""

import argparse
import sys
from functools import partial
from pathlib import Path

from agentflow._terminal import printable
from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit, print_json, write_out
from agentflow.dashboard import PageData, write_bundle
from agentflow.exports import ExportManifest, export_run, push_export
from agentflow.inspection import open_runs
from agentflow.telemetry import Level


def run_export(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if the run can't be read, or the files can't be written.
    """
    manifest = export_run(
        arguments.run,
        arguments.format,
        arguments.output,
        take=arguments.take,
        path=arguments.path,
        view=arguments.view,
        split=arguments.split,
        name=arguments.name,
    )
    if arguments.push_to_hub:
        sys.stderr.write(f"agentflow: uploaded to {push_export(arguments.output, arguments.push_to_hub)}\n")
    read = write_out(partial(_show, manifest, arguments.output, as_json=arguments.json))
    return Exit.DONE if read else Exit.INTERRUPTED


def _show(manifest: ExportManifest, output: str, *, as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    for name, count in manifest.rows.items():
        sys.stdout.write(f"{output}/{name}: {count} rows\n")
    if manifest.dropped:
        counts = ", ".join(f"{count} {reason}" for reason, count in manifest.dropped.items())
        sys.stdout.write(f"left out: {counts}\n")
    for note in manifest.notes:
        sys.stdout.write(f"{note}\n")


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
