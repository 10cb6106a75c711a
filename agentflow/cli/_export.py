"""`agentflow export`: a run as a data set for other trainers."""

import argparse
import sys
from functools import partial

from agentflow.cli._output import Exit, print_json, write_out
from agentflow.exports import ExportManifest, export_run, push_export


def run_export(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if the run can't be read, or the files can't be written.
    """
    manifest = export_run(
        given.run,
        given.format,
        given.output,
        take=given.take,
        path=given.path,
        view=given.view,
        split=given.split,
        name=given.name,
    )
    if given.push_to_hub:
        sys.stderr.write(f"agentflow: uploaded to {push_export(given.output, given.push_to_hub)}\n")
    read = write_out(partial(_show, manifest, given.output, as_json=given.json))
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
