"""`agentflow data`: preparation of training data."""

import argparse
import sys
from functools import partial

from agentflow.cli._output import Exit, print_json, write_out
from agentflow.learner.data import Prepared, prepare


def run_data(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if something can't be read or written.
    """
    prepared = prepare(
        given.output,
        search=given.search,
        math=given.math,
        aime24=given.aime24,
        validation=given.validation,
        limit=given.limit,
        seed=given.seed,
    )
    read = write_out(partial(_show, prepared, given.output, as_json=given.json))
    return Exit.DONE if read else Exit.INTERRUPTED


def _show(prepared: Prepared, output: str, *, as_json: bool) -> None:
    if as_json:
        print_json(prepared)
        return
    for path, rows in prepared.files.items():
        sys.stdout.write(f"{output}/{path}: {rows} questions\n")
    if prepared.duplicates or prepared.tested:
        sys.stdout.write(f"left out: {prepared.duplicates} duplicates, {prepared.tested} of the test set\n")
