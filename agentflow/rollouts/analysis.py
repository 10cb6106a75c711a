"""Analysis of finished rollouts: tables, a chart and a terminal view of their scores. See docs/analyse.md."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import msgspec
from msgspec import UNSET, Struct

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import read_file
from agentflow._terminal import printable
from agentflow.errors import ConfigurationError
from agentflow.rollouts._summary import SUMMARY, RolloutSummary, Spread
from agentflow.runs import cost_text, counts_text, estimates_text, html_card, report_table, role_names

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "AnalysedRun",
    "AnalysisTable",
    "draw",
    "find_runs",
    "render_summary",
    "summary_card",
    "tables_of",
    "with_interval",
]


class AnalysedRun(Struct, frozen=True):
    """Finished rollout."""

    folder: str
    """Its output directory."""
    summary: RolloutSummary
    """Its summary."""

    @property
    def model(self) -> str:
        """Model of the planner or the agent."""
        models = self.summary.models
        return models.get("planner") or models.get("agent") or next(iter(models.values()), "")

    @property
    def setting(self) -> str:
        """Agent and way of verifying."""
        return f"team, {self.summary.verify}" if self.summary.agent == "team" else self.summary.agent


class AnalysisTable(Struct, frozen=True):
    """Table of an analysis."""

    title: str
    """Title."""
    columns: tuple[str, ...]
    """Column names."""
    rows: tuple[tuple[str, ...], ...]
    """Rows of text."""


def find_runs(folders: Iterable[str | Path]) -> list[AnalysedRun]:
    """Return the finished rollouts in and below these directories, sorted by directory. See docs/analyse.md.

    :raises ConfigurationError: one line, if there is none, or a summary can't be read.
    """
    runs: dict[Path, AnalysedRun] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such directory; name the output_dir of a rollout")
        files = sorted(folder.rglob(SUMMARY))
        if not files:
            raise ConfigurationError(
                f"{folder}: contains no {SUMMARY}; name the output_dir of a finished rollout"
            )
        runs |= {file.resolve(): _read(file) for file in files}
    return sorted(runs.values(), key=lambda run: (run.summary.benchmark, run.model, run.folder))


def _read(file: Path) -> AnalysedRun:
    try:
        return AnalysedRun(
            str(file.parent), msgspec.json.decode(read_file(file, file.parent), type=RolloutSummary)
        )
    except OSError as error:
        raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
    except DECODE_ERRORS as error:
        raise ConfigurationError(f"{file}: not a summary of a rollout: {decode_reason(error)}") from None


def tables_of(runs: Sequence[AnalysedRun]) -> list[AnalysisTable]:
    """Return tables of accuracy, turns, tools, failed calls and verifiers, without empty ones. See docs/analyse.md."""
    tables = [_accuracy(runs), _turns(runs), _tools(runs), _errors(runs), _verifying(runs)]
    return [table for table in tables if table.rows]


def _accuracy(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    rows = (
        (
            *_who_at(run),
            run.summary.metric,
            with_interval(run.summary),
            str(run.summary.tasks),
            str(run.summary.failed),
        )
        for run in runs
        if run.summary.metric is not None
    )
    columns = ("benchmark", "model", "agent", "turns at most", "metric", "score (95 %)", "tasks", "failed")
    return AnalysisTable("Accuracy", columns, tuple(rows))


def _turns(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    budgets = sorted({run.summary.max_turns for run in runs})
    by_who: dict[tuple[str, ...], dict[int, AnalysedRun]] = {}
    for run in runs:
        by_who.setdefault(_who(run), {})[run.summary.max_turns] = run
    rows = (
        (*who, *(_at_budget(labels[budget]) if budget in labels else "" for budget in budgets))
        for who, labels in by_who.items()
    )
    columns = ("benchmark", "model", "agent", *(f"at most {budget}" for budget in budgets))
    return AnalysisTable("Average turns and score by budget", columns, tuple(rows))


def _at_budget(run: AnalysedRun) -> str:
    turns = f"{run.summary.turns.mean:.2f}"
    return turns if run.summary.score is None else f"{turns} ({run.summary.score:.1%})"


def _tools(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    tools = sorted({tool for run in runs for tool in run.summary.tool_use})
    rows = (
        (*_who_at(run), *(_share(run.summary, tool) for tool in tools))
        for run in runs
        if run.summary.tool_calls
    )
    return AnalysisTable(
        "Share of tool calls by tool",
        ("benchmark", "model", "agent", "turns at most", *tools),
        tuple(rows),
    )


def _share(summary: RolloutSummary, tool: str) -> str:
    return f"{summary.tool_use[tool].share:.1%}" if tool in summary.tool_use else "0.0%"


def _errors(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    rows = (
        (*_who_at(run), str(run.summary.tool_calls), f"{run.summary.tool_error_rate:.1%}")
        for run in runs
        if run.summary.tool_calls
    )
    columns = ("benchmark", "model", "agent", "turns at most", "calls", "failed")
    return AnalysisTable("Failed tool calls", columns, tuple(rows))


def _verifying(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    """Return both ways of verifying side by side, of models that were run with both."""
    pairs: dict[tuple[str, str, int], dict[str, AnalysedRun]] = {}
    for run in runs:
        if run.summary.agent == "team":
            key = (run.summary.benchmark, run.model, run.summary.max_turns)
            pairs.setdefault(key, {})[run.summary.verify] = run
    rows = (
        row for pair in pairs.values() if len(pair) > 1 for row in _both(pair["separate"], pair["merged"])
    )
    columns = (
        "benchmark", "model", "turns at most", "verifier", "score (95 %)", "turns", "calls per task", "tokens per task",
    )  # fmt: skip
    return AnalysisTable("Separate and merged verifier", columns, tuple(rows))


def _both(*runs: AnalysedRun) -> Iterator[tuple[str, ...]]:
    for run in runs:
        summary = run.summary
        yield (
            summary.benchmark,
            run.model,
            str(summary.max_turns),
            summary.verify,
            with_interval(summary),
            f"{summary.turns.mean:.2f}",
            f"{sum(summary.calls_per_task.values()):.1f} ({_calls(summary)})",
            f"{summary.tokens / max(1, summary.results):,.0f}",
        )


def _calls(summary: RolloutSummary) -> str:
    return ", ".join(f"{role} {count:.1f}" for role, count in summary.calls_per_task.items())


def _who(run: AnalysedRun) -> tuple[str, str, str]:
    return run.summary.benchmark, run.model, run.setting


def _who_at(run: AnalysedRun) -> tuple[str, str, str, str]:
    return (*_who(run), str(run.summary.max_turns))


def with_interval(summary: RolloutSummary) -> str:
    """Return the mean score in per cent with its confidence interval: `57.3% (51.0% to 63.5%)`.

    See docs/analyse.md.
    """
    if summary.score is None or summary.interval is None:
        return "not scored"
    return f"{summary.score:.1%} ({summary.interval.low:.1%} to {summary.interval.high:.1%})"


def render_summary(summary: RolloutSummary) -> "Table":
    """Return the summary as a table.

    See docs/analyse.md.
    """
    return report_table(_rows(summary))


def summary_card(summary: RolloutSummary) -> str:
    """Return the summary as HTML for a notebook.

    See docs/analyse.md.
    """
    return html_card(f"Rollout: {with_interval(summary)}", _rows(summary))


def _rows(summary: RolloutSummary) -> list[tuple[str, str]]:
    several = f", {summary.samples} samples each" if summary.samples > 1 else ""
    rows = [("not scored", _not_scored(summary))] if summary.unjudged_tasks else []
    rows += [
        ("engine", role_names(summary.models)),
        (
            "tasks",
            f"{summary.tasks} of {summary.benchmark}{several}; failed: {counts_text(summary.failures)}",
        ),
    ]
    if summary.metric is not None:
        unjudged = f", {summary.unjudged} could not be judged" if summary.unjudged else ""
        unjudged += f", {summary.abstained} left empty" if summary.abstained else ""
        rows.append(
            (summary.metric, f"{with_interval(summary)}, {summary.perfect} with full marks{unjudged}")
        )
    if summary.samples > 1 and summary.metric is not None:
        rows.append(
            ("pass@k", ", ".join(f"{k}: {share:.1%}" for k, share in summary.pass_at.items()) or "none")
        )
        rows.append(("majority", f"{summary.majority:.1%}; best by verifier {summary.best_by_verifier:.1%}"))
    if summary.evidence is not UNSET:
        rows.append(("evidence", f"{summary.evidence:.1%} (F2 of the documents read)"))
    rows += [
        ("endings", counts_text(summary.endings)),
        ("turns", _spread(summary.turns, "{:.1f}")),
        ("seconds", _spread(summary.seconds, "{:.2f}")),
        (
            "tools",
            f"{summary.tool_calls} calls, {summary.tool_error_rate:.1%} failed; {_tool_shares(summary)}",
        ),
        ("calls per task", _calls(summary) or "none"),
        (
            "usage",
            "; ".join(
                filter(None, [f"{summary.tokens:,} tokens{_cost(summary)}", estimates_text(summary.usage)])
            ),
        ),
    ]
    rows += [("tool dropped", f"{name}: {why}") for name, why in summary.dropped_tools.items()]
    return rows + [(f"failed {task.task_id}", task.why) for task in summary.failed_tasks]


def _not_scored(summary: RolloutSummary) -> str:
    first = summary.unjudged_tasks[0]
    return f"{summary.unjudged} of {summary.results} answers, first {first.task_id}: {first.why}"


def _spread(spread: Spread, form: str) -> str:
    mean, half, most = (form.format(value) for value in (spread.mean, spread.p50, spread.p95))
    return f"mean {mean}, median {half}, 95th percentile {most}"


def _tool_shares(summary: RolloutSummary) -> str:
    return ", ".join(f"{tool} {use.share:.0%}" for tool, use in summary.tool_use.items()) or "none used"


def _cost(summary: RolloutSummary) -> str:
    if not any(summary.cost.values()):
        return ""
    return f", cost {cost_text(summary.cost, summary.prices_as_of, summary.tasks, 'task')}"


_ROW, _TOP, _SCALE, _RIGHT = 26, 46, 420, 170
_FEWEST_LABELS = 360
"""Least width of the labels."""
_CHARACTER = 12
"""Width of the widest characters. Fonts differ: too much room is better than a cut label."""
_NARROW = 7.5
"""Width of other characters, on average."""
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Palette for all kinds of colour vision."""


def draw(runs: Sequence[AnalysedRun]) -> str:
    """Return an SVG chart of the scores, with one colour per benchmark. See docs/analyse.md."""
    shown = [run for run in runs if run.summary.score is not None]
    names = list(dict.fromkeys(run.summary.benchmark for run in shown))
    labels = [_label(run) for run in shown]
    left = max([_FEWEST_LABELS, *(16 + ceil(_text_width(label)) for label in labels)])
    width, height = left + _SCALE + _RIGHT, _TOP + _ROW * len(shown) + 24
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _svg_text(8, 20, "Mean score with 95 % confidence interval", weight="bold"),
        *_axis(left, height),
    ]
    for row, (run, label) in enumerate(zip(shown, labels, strict=True)):
        colour = _COLOURS[names.index(run.summary.benchmark) % len(_COLOURS)]
        y = _TOP + _ROW * row
        lines += [_svg_text(left - 8, y + 15, label, anchor="end"), *_bar(run, left, y, colour)]
    return "\n".join([*lines, "</svg>", ""])


def _label(run: AnalysedRun) -> str:
    return f"{run.summary.benchmark} · {run.model} · {run.setting} · {run.summary.max_turns} turns"


def _text_width(text: str) -> float:
    return sum(
        _CHARACTER if character in "mwMW@%" or east_asian_width(character) in "WF" else _NARROW
        for character in text
    )


def _axis(left: int, height: int) -> list[str]:
    lines: list[str] = []
    for step in range(0, 101, 20):
        x = left + _SCALE * step / 100
        lines.append(f'<line x1="{x:g}" x2="{x:g}" y1="{_TOP - 6}" y2="{height - 20}" stroke="#dddddd"/>')
        lines.append(_svg_text(x, height - 6, f"{step} %", anchor="middle"))
    return lines


def _bar(run: AnalysedRun, left: int, y: int, colour: str) -> list[str]:
    summary = run.summary
    score = summary.score or 0.0
    lines = [
        f'<rect x="{left}" y="{y + 3}" width="{_SCALE * score:.1f}" height="{_ROW - 9}" fill="{colour}"/>',
        _svg_text(left + _SCALE + 10, y + 15, f"{score:.1%}, {summary.turns.mean:.1f} turns on average"),
    ]
    if summary.interval is not None:
        low, high = (left + _SCALE * end for end in (summary.interval.low, summary.interval.high))
        middle = y + 3 + (_ROW - 9) / 2
        lines.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="black" stroke-width="1.5"/>'
        )
    return lines


def _svg_text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(printable(text))}</text>'
