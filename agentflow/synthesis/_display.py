"""A synthesis on a screen: its progress with a preview of pairs, its report, and its result in a few lines."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec
from msgspec import Struct

from agentflow.runs import cost_text, counts_text, estimates_text, html_card, report_table, role_names
from agentflow.synthesis._files import PAIRS, TASKS
from agentflow.synthesis._report import PairPreview, Report, SynthesisStatus
from agentflow.trace import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from agentflow.runs import ProgressScreen

T = TypeVar("T")

_PREVIEW_CHARS = 240
_PREVIEWS = 3
_EXAMPLES = 3
"""Number of rejection reasons with an example."""


async def show_while(
    work: Callable[[], Awaitable[T]],
    screen: "ProgressScreen",
    status: Callable[[], SynthesisStatus],
    notes: Sequence[str],
) -> T:
    """Do the work, show its progress on a screen, and return its result.

    :param status: returns the current progress.
    :param notes: lines about the input, as far as they are known.
    """
    from rich.text import Text

    from agentflow.runs import show_progress

    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show_progress, screen, lambda: status_table(notes, status()))
        try:
            return await work()
        except anyio.get_cancelled_exc_class():
            screen.keep(Text("Interrupted. Everything so far is recorded: the same call resumes."))
            raise
        except Exception as error:  # raised below: a task group would wrap it
            failed = error
        finally:
            tasks.cancel_scope.cancel()
    assert failed is not None  # otherwise it has returned
    raise failed


def status_table(notes: Sequence[str], status: SynthesisStatus) -> "Table":
    """Return the progress as a table. See docs/supervisor.md."""
    from rich.text import Text

    from agentflow.runs import run_table

    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in status.nodes.items())
    table = run_table(
        status,
        notes,
        seeds=f"{status.done} of {status.seeds} done, {status.active} growing",
        nodes=f"{sum(status.nodes.values())}  {verdicts}",
        questions=f"{status.questions} accepted, {status.rejected} drafts rejected"
        if not status.tasks
        else f"{status.tasks} tasks accepted, {status.rejected} rejected",
    )
    for number, pair in enumerate(status.latest):
        table.add_row("" if number else "latest", Text(_preview(pair)))
    return table


def render_report(report: Report) -> "RenderableType":
    """Return the report as a table.

    See docs/synthesis.md.
    """
    from rich.console import Group
    from rich.text import Text

    table = report_table(_rows(report))
    if not report.why_empty:
        return table
    return Group(table, Text(f"Nothing was written: {report.why_empty}", style="bold red"))


def report_card(report: Report) -> str:
    """Return the report as HTML for a notebook."""
    note = f"Nothing was written: {report.why_empty}" if report.why_empty else ""
    return html_card(f"Synthesis: {_kept(report)}", _rows(report), note=note)


def render_result(report: Report, folder: Path) -> "RenderableType":
    """Return a result in a few lines: counts and some pairs, or the reason that there are none."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = {
        "seed": report.seeds,
        "action": report.nodes,
        "new observation": report.verdicts.get(Verdict.NEW, 0),
        "path": report.selected_paths,
        "document": report.documents,
        "draft": report.drafts,
    }
    stages = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    if report.why_empty:
        return Group(Text(f"Nothing was written: {report.why_empty}", style="bold red"), Text(stages))
    lines = [Text(f"{_kept(report)} in {folder}", style="bold"), Text(f"{stages}; {_price(report)}")]
    pairs = Table.grid(padding=(0, 1))
    for pair in islice(_previews(folder), _PREVIEWS):
        pairs.add_row("\nQ:", Text(f"\n{_short(pair.question)}"))
        if pair.answer:
            pairs.add_row("A:", Text(_short(pair.answer)))
    return Group(*lines, pairs)


def _kept(report: Report) -> str:
    if report.tasks:
        return f"{report.tasks} tasks"
    return f"{report.pairs} question-answer pairs ({counts_text(report.kinds)})"


class _PairLine(Struct):
    question: str
    answer: str
    metadata: dict[str, object]


class _TaskLine(Struct):
    instruction: str
    answer: str = ""


def _previews(folder: Path) -> Iterator[PairPreview]:
    """Yield pairs of different kinds, or tasks, from the files."""
    seen: set[object] = set()
    for line in _lines(folder / PAIRS):
        pair = msgspec.json.decode(line, type=_PairLine)
        if (kind := pair.metadata.get("kind")) not in seen:
            seen.add(kind)
            yield PairPreview(pair.question, pair.answer)
    for line in _lines(folder / TASKS):
        task = msgspec.json.decode(line, type=_TaskLine)
        yield PairPreview(task.instruction, task.answer)


def _lines(file: Path) -> Iterator[bytes]:
    if file.is_file():
        with file.open("rb") as lines:
            yield from lines


def _preview(pair: PairPreview) -> str:
    answer = f"\nA: {_short(pair.answer)}" if pair.answer else ""
    return f"Q: {_short(pair.question)}{answer}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS else f"{line[: _PREVIEW_CHARS - 1]}…"


def _rows(report: Report) -> list[tuple[str, str]]:
    failed = f", {report.failed_seeds} failed" if report.failed_seeds else ""
    joined = f", {report.joined_paths} joined for questions that span branches" if report.joined_paths else ""
    stalled = "1 node" if report.stalled == 1 else f"{report.stalled} nodes"
    rows = [
        ("engine", role_names(report.engines)),
        ("seeds", f"{report.seeds}{failed}"),
        ("trees", f"{report.trees} with {report.nodes} actions: {counts_text(report.verdicts)}"),
        ("actions refused", f"{report.duplicates} duplicates; {stalled} had nothing new to try"),
        ("paths", f"{report.selected_paths} selected{joined}; left out: {counts_text(report.left_out)}"),
        ("documents", f"{report.documents} in passages; {report.copies} copies of others"),
        ("drafts", f"{report.drafts}; rejected: {counts_text(report.rejected)}"),
    ]
    most = sorted(report.rejected, key=lambda check: (-report.rejected[check], check))
    rows += [(f"  {check}", f"such as: {report.rejection_examples[check]}") for check in most[:_EXAMPLES]]
    rows.append(("pairs", f"{report.pairs} written; surplus: {counts_text(report.surplus)}"))
    if report.tasks or report.rejected_tasks:
        rows.append(("tasks", f"{report.tasks} written; rejected: {counts_text(report.rejected_tasks)}"))
    rows += [
        (
            "path calls",
            f"{report.path_calls} on the paths of pairs, {report.trimmed_calls} of which no answer needs",
        ),
        ("kinds", counts_text(report.kinds)),
        ("hops", f"pairs by number of documents that proved necessary: {_by_number(report.hops)}"),
        ("passed", ", ".join(f"{check} {share:.0%}" for check, share in report.passing.items()) or "all"),
        (
            "quality",
            "; ".join(
                [
                    f"naturalness {report.naturalness:g} of 5",
                    f"{report.repaired} repaired",
                    f"{report.disputed} disputed",
                    f"known from memory: {_by_number(report.known)}",
                ]
            ),
        ),
        ("agreement", ", ".join(_agreement(report)) or "no votes"),
    ]
    if report.pass_rates or report.triaged:
        rows.append(
            ("attempts", f"right {counts_text(report.pass_rates)}; triaged {counts_text(report.triaged)}")
        )
    rows += [
        ("usage", "; ".join(filter(None, [*_usage(report), _price(report), estimates_text(report.usage)]))),
        (
            "failures",
            f"model: {counts_text(report.model_failures)}; tools: {counts_text(report.tool_failures)}",
        ),
    ]
    rows += [("tool dropped", f"{name}: {why}") for name, why in report.dropped_tools.items()]
    return rows + [(f"failed {seed.source_id}", seed.why) for seed in report.failures_of_seeds]


def _by_number(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number}: {count}" for number, count in counts.items()) or "none"


def _agreement(report: Report) -> Iterator[str]:
    for check, share in report.agreement.items():
        yield f"{check} {share:.0%} of {report.votes[check]}"


def _usage(report: Report) -> Iterator[str]:
    for role, used in report.usage.items():
        if not used.calls:
            continue
        yield f"{role} {used.calls} calls, {used.prompt_tokens} + {used.completion_tokens} tokens" + (
            f", {report.cost[role]:.4f}" if report.cost.get(role) else ""
        )


def _price(report: Report) -> str:
    """Return the calls and the cost of the run and of a pair."""
    unit = "task" if report.tasks else "pair"
    kept = report.pairs or report.tasks
    calls = (
        f"{report.calls_per_pair:g} calls and {report.tokens_per_pair:,.0f} tokens per {unit}"
        if kept
        else "no calls per pair: there is none"
    )
    return (
        f"{calls}; cost {cost_text(report.cost, report.prices_as_of, kept, unit)}"
        if any(report.cost.values())
        else calls
    )
