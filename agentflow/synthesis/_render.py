"""Report as a table for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentflow.synthesis._report import Report

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_report(report: Report) -> "RenderableType":
    """Return the report as a table.

    See docs/synthesis.md.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _rows(report):
        table.add_row(name, Text(value))
    if not report.why_empty:
        return table
    return Group(table, Text(f"No pair was written: {report.why_empty}", style="bold red"))


def _rows(report: Report) -> list[tuple[str, str]]:
    failed = f", {report.failed_seeds} failed" if report.failed_seeds else ""
    unsure = f", {report.not_asked_back} without an answerability check" if report.not_asked_back else ""
    rows = [
        ("engine", _engines(report.engines)),
        ("seeds", f"{report.seeds}{failed}"),
        ("trees", f"{report.trees} with {report.nodes} actions: {_counts(report.verdicts)}"),
        ("actions refused", f"{report.duplicates} duplicates; {report.stalled} nodes had nothing new to try"),
        ("paths", f"{report.trajectories} selected; left out: {_counts(report.left_out)}"),
        ("drafts", f"{report.drafts}; rejected: {_counts(report.rejected)}"),
        ("pairs", f"{report.pairs} written; {report.near_duplicates} near-duplicates dropped{unsure}"),
        ("grounding", f"{report.grounded_share:.0%} of drafts; answers {_counts(report.grounding)}"),
        (
            "difficulty",
            f"observations needed {_counts(report.hops)}; tries {_counts(report.tries)}; {report.too_easy} too easy",
        ),
        ("usage", "; ".join(_usage(report)) or "none"),
        ("failures", f"model: {_counts(report.model_failures)}; tools: {_counts(report.tool_failures)}"),
    ]
    rows += [("tool dropped", f"{name}: {why}") for name, why in report.dropped_tools.items()]
    return rows + [(f"failed {seed.source_id}", seed.why) for seed in report.failures_of_seeds]


def _engines(engines: Mapping[str, str]) -> str:
    if len(set(engines.values())) == 1:
        return next(iter(engines.values()))
    return ", ".join(f"{role} {name}" for role, name in engines.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _usage(report: Report) -> list[str]:
    return [
        f"{role} {used.calls} calls, {used.prompt_tokens} + {used.completion_tokens} tokens"
        + (f", {report.cost[role]:.4f}" if role in report.cost else "")
        for role, used in report.usage.items()
    ]
