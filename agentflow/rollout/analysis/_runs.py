"""Tables from the summaries of finished rollouts."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.rollout._files import SUMMARY
from agentflow.rollout._summary import RolloutSummary
from agentflow.rollout.analysis._render import with_interval


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
        return self.summary.agent if self.summary.agent == "single" else f"team, {self.summary.verify}"


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
    found: dict[Path, AnalysedRun] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such directory; name the output_dir of a rollout")
        files = sorted(folder.rglob(SUMMARY))
        if not files:
            raise ConfigurationError(
                f"{folder}: contains no {SUMMARY}; name the output_dir of a finished rollout"
            )
        found |= {file.resolve(): _read(file) for file in files}
    return sorted(found.values(), key=lambda run: (run.summary.benchmark, run.model, run.folder))


def tables_of(runs: Sequence[AnalysedRun]) -> list[AnalysisTable]:
    """Return tables of accuracy, turns, tools, failed calls and verifiers, without empty ones. See docs/analyse.md."""
    tables = [_accuracy(runs), _turns(runs), _tools(runs), _errors(runs), _verifying(runs)]
    return [table for table in tables if table.rows]


def _read(file: Path) -> AnalysedRun:
    try:
        return AnalysedRun(str(file.parent), msgspec.json.decode(file.read_bytes(), type=RolloutSummary))
    except OSError as error:
        raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{file}: not a summary of a rollout: {error}") from None


def _accuracy(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    rows = (
        (
            *_who(run),
            str(run.summary.max_turns),
            run.summary.metric,
            with_interval(run.summary),
            *_counts(run.summary),
        )
        for run in runs
        if run.summary.metric is not None
    )
    columns = ("benchmark", "model", "agent", "turns at most", "metric", "score (95 %)", "tasks", "failed")
    return AnalysisTable("Accuracy", columns, tuple(rows))


def _counts(summary: RolloutSummary) -> tuple[str, str]:
    return str(summary.tasks), str(summary.failed)


def _turns(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    budgets = sorted({run.summary.max_turns for run in runs})
    by_who: dict[tuple[str, ...], dict[int, AnalysedRun]] = {}
    for run in runs:
        by_who.setdefault(_who(run), {})[run.summary.max_turns] = run
    rows = (
        (*who, *(_at_budget(own[budget]) if budget in own else "" for budget in budgets))
        for who, own in by_who.items()
    )
    columns = ("benchmark", "model", "agent", *(f"at most {budget}" for budget in budgets))
    return AnalysisTable("Average turns and score by budget", columns, tuple(rows))


def _at_budget(run: AnalysedRun) -> str:
    turns = f"{run.summary.turns.mean:.2f}"
    return turns if run.summary.score is None else f"{turns} ({run.summary.score:.1%})"


def _tools(runs: Sequence[AnalysedRun]) -> AnalysisTable:
    tools = sorted({tool for run in runs for tool in run.summary.tool_use})
    rows = (
        (*_who(run), str(run.summary.max_turns), *(_share(run.summary, tool) for tool in tools))
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
        (
            *_who(run),
            str(run.summary.max_turns),
            str(run.summary.tool_calls),
            f"{run.summary.tool_error_rate:.1%}",
        )
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
    rows = (row for own in pairs.values() if len(own) > 1 for row in _both(own["separate"], own["merged"]))
    columns = (
        "benchmark", "model", "turns at most", "verifier", "score (95 %)", "turns", "calls per task", "tokens per task",
    )  # fmt: skip
    return AnalysisTable("Separate and merged verifier", columns, tuple(rows))


def _both(*runs: AnalysedRun) -> Iterator[tuple[str, ...]]:
    for run in runs:
        said = run.summary
        calls = ", ".join(f"{role} {count:.1f}" for role, count in said.calls_per_task.items())
        yield (
            said.benchmark,
            run.model,
            str(said.max_turns),
            said.verify,
            with_interval(said),
            f"{said.turns.mean:.2f}",
            f"{sum(said.calls_per_task.values()):.1f} ({calls})",
            f"{said.tokens / max(1, said.results):,.0f}",
        )


def _who(run: AnalysedRun) -> tuple[str, str, str]:
    return run.summary.benchmark, run.model, run.setting
