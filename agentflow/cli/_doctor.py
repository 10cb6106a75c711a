"""`agentflow doctor`: the parts that this machine can run, and what to install or set for the others."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from agentflow._private_files import open_private
from agentflow.cli._output import Exit, print_progress, write_out
from agentflow.doctor import AREAS, Diagnosis, DiagnosisState, RecordedAnswer, examine, examine_live
from agentflow.errors import ConfigurationError
from agentflow.settings import read_environment

if TYPE_CHECKING:
    from rich.console import Console

ESSENTIAL = (("runtimes", "process"), ("backends", "rag"))
"""Parts that `make run` needs."""

_MARKS = {
    DiagnosisState.WORKS: "[green]✓[/]",
    DiagnosisState.PARTLY: "[yellow]~[/]",
    DiagnosisState.MISSING: "[red]✗[/]",
}


def run_doctor(arguments: argparse.Namespace) -> int:
    """Run the checks and print the results; the status is `FAILED` if a named or essential part does not work.

    :raises ConfigurationError: if a name is unknown, or no service has a key.
    """
    answers: list[RecordedAnswer] = []
    if arguments.live:
        parts, answers = anyio.run(examine_live, arguments.names, read_environment())
    else:
        parts = anyio.run(examine, arguments.names, read_environment())
    if arguments.json:
        sys.stdout.write(json.dumps([msgspec.to_builtins(part) for part in parts]) + "\n")
    elif not write_out(partial(_show, parts, arguments.names)):
        return Exit.INTERRUPTED
    if answers:
        _record(answers, Path(arguments.record))
    needed = [
        part for part in parts if arguments.live or arguments.names or (part.area, part.name) in ESSENTIAL
    ]
    return Exit.FAILED if any(part.state is DiagnosisState.MISSING for part in needed) else Exit.DONE


def _record(answers: Sequence[RecordedAnswer], path: Path) -> None:
    try:
        with open_private(path, "ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(answers))
    except OSError as error:
        raise ConfigurationError(f"--record {path}: {error.strerror or error}") from None
    print_progress(f"{path}: {len(answers)} answers added")


def _show(parts: Sequence[Diagnosis], named: Sequence[str]) -> None:
    from rich.console import Console

    from agentflow.runs import PrintableData

    console = Console()
    console.push_render_hook(PrintableData())
    # Rich would exit the program on a broken pipe, so it does not write by itself.
    with console.capture() as captured:
        _print(console, parts, named)
    sys.stdout.write(captured.get())


def _print(console: "Console", parts: Sequence[Diagnosis], named: Sequence[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    for area in (*AREAS, "live"):
        shown = [part for part in parts if part.area == area]
        if not shown:
            continue
        table = Table("", area, "", box=None, pad_edge=False, show_header=True, header_style="bold")
        unset = [part for part in shown if part.variable and part.name not in named]
        for part in shown:
            if part not in unset:
                table.add_row(_MARKS[part.state], part.name, escape(part.text))
        if unset:
            names = ", ".join(f"{part.name} ({part.variable})" for part in unset)
            table.add_row("–", "not set up", escape(names))
        console.print(table)
        console.print()
    if commands := [part.command for part in parts if part.command]:
        console.print("To install the rest:", style="bold")
        console.print(escape(" && ".join(commands)), soft_wrap=True)
