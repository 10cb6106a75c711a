"""`agentflow analyse`: tables and a chart of finished rollouts."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentflow.cli._output import UNLIMITED, Exit, print_json, print_wide, text_table, write_out
from agentflow.errors import ConfigurationError
from agentflow.rollouts.analysis import AnalysedRun, draw, find_runs, tables_of


def run_analyse(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if a directory can't be read, or the chart can't be written.
    """
    runs = find_runs(arguments.folders)
    if arguments.picture:
        _draw(runs, Path(arguments.picture))
    read = write_out(partial(_show, runs, as_json=arguments.json))
    return Exit.DONE if read else Exit.INTERRUPTED


def _draw(runs: Sequence[AnalysedRun], file: Path) -> None:
    if file.suffix.lower() != ".svg":
        raise ConfigurationError(f"--picture: {file} is not an SVG file; name one that ends in .svg")
    try:
        file.write_text(draw(runs), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--picture: {file} can't be written: {error.strerror}") from None


def _show(runs: Sequence[AnalysedRun], *, as_json: bool) -> None:
    tables = tables_of(runs)
    if as_json:
        print_json({"runs": [run.folder for run in runs], "tables": tables})
        return
    parts = [part for table in tables for part in (f"\n{table.title}", text_table(table.columns, table.rows))]
    print_wide(*parts, width=UNLIMITED)
