"""`agentflow doctor`: what this machine can run, and what to install or set for the rest."""

import argparse
import json
import sys
from collections.abc import Sequence

import anyio
import msgspec

from agentflow.cli._output import Exit
from agentflow.doctor import AREAS, Diagnosis, DiagnosisState, examine
from agentflow.settings import read_environment

__all__ = ["run_doctor"]

ESSENTIAL = (("runtimes", "process"), ("backends", "rag"))
"""What the main job needs."""

_MARKS = {
    DiagnosisState.WORKS: "[green]✓[/]",
    DiagnosisState.PARTLY: "[yellow]~[/]",
    DiagnosisState.MISSING: "[red]✗[/]",
}


def run_doctor(given: argparse.Namespace) -> int:
    """Look at it and tell. Fails where something does not work that was named, or that the main job needs.

    :raises ConfigurationError: for a name that means nothing.
    """
    findings = anyio.run(examine, given.names, read_environment())
    if given.json:
        sys.stdout.write(json.dumps([msgspec.to_builtins(finding) for finding in findings]) + "\n")
    else:
        _show(findings)
    needed = [one for one in findings if given.names or (one.area, one.name) in ESSENTIAL]
    return Exit.FAILED if any(one.state is DiagnosisState.MISSING for one in needed) else Exit.DONE


def _show(findings: Sequence[Diagnosis]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for area in AREAS:
        mine = [finding for finding in findings if finding.area == area]
        if not mine:
            continue
        table = Table("", area, "", box=None, pad_edge=False, show_header=True, header_style="bold")
        for finding in mine:
            table.add_row(_MARKS[finding.state], finding.name, escape(finding.said))
        console.print(table)
        console.print()
