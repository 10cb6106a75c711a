"""`agentflow audit`: the checks of a synthesis over questions that came from elsewhere."""

import argparse
from collections import Counter
from pathlib import Path

import anyio

from agentflow.cli._output import buffered_console
from agentflow.cli._program import watch_run
from agentflow.cli._synth import synth_view
from agentflow.synthesis import (
    AUDIT,
    AuditRun,
    AuditVerdict,
    audit_settings,
    load_questions,
    load_synthesis_config,
)
from mcp_servers.rag import read_documents

_WIDTH = 120
_REASON = 160
"""Characters of a reason that are shown."""


def run_audit(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    questions = load_questions(Path(arguments.questions))
    folder = Path(arguments.documents)
    named = [f"model_name={arguments.model}"] if arguments.model else []
    settings = [f"{name}={value}" for name, value in audit_settings(folder, arguments.output).items()]
    config = load_synthesis_config(arguments.config, [*settings, *named, *arguments.settings])
    documents = anyio.run(read_documents, folder)
    run = AuditRun(config, questions, documents, resume=arguments.resume, retry_failed=arguments.retry_failed)

    def fields() -> dict[str, object]:
        return {"output_dir": str(run.directory.folder), "verdicts": run.verdicts}

    def show() -> None:
        if run.verdicts:
            _show(run.verdicts, run.directory.folder)

    return watch_run(run, run.audit, synth_view(run), as_json=arguments.json, fields=fields, show=show)


def _show(verdicts: list[AuditVerdict], folder: Path) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=True, header_style="bold")
    for name in ("id", "verdict", "reason"):
        table.add_column(name, overflow="fold")
    for verdict in verdicts:
        reason = verdict.findings[0].reason if verdict.findings else ""
        labels = [f"known {verdict.known:.0%}"] if verdict.known else []
        labels += ["disputed"] if verdict.disputed else []
        table.add_row(
            verdict.id, "passed" if verdict.passed else verdict.check, _short(reason) or ", ".join(labels)
        )
    counts = Counter("passed" if verdict.passed else verdict.check for verdict in verdicts)
    with buffered_console(_WIDTH) as console:
        console.print(table)
        summary = ", ".join(f"{check} {count}" for check, count in counts.most_common())
        console.print(f"\n{len(verdicts)} questions: {summary}")
        console.print(f"Evidence of each check: {folder / AUDIT}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON else f"{line[: _REASON - 1]}…"
