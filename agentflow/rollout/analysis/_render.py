"""Summary as a table for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentflow.rollout._summary import RolloutSummary, Spread

if TYPE_CHECKING:
    from rich.console import RenderableType


def with_interval(summary: RolloutSummary) -> str:
    """Return the mean score in per cent with its confidence interval: `57.3% (51.0% to 63.5%)`.

    See docs/analyse.md.
    """
    if summary.score is None or summary.interval is None:
        return "not scored"
    return f"{summary.score:.1%} ({summary.interval.low:.1%} to {summary.interval.high:.1%})"


def render_summary(summary: RolloutSummary) -> "RenderableType":
    """Return the summary as a table.

    See docs/analyse.md.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _rows(summary):
        table.add_row(name, Text(value))
    return table


def _rows(said: RolloutSummary) -> list[tuple[str, str]]:
    several = f", {said.samples} samples each" if said.samples > 1 else ""
    rows = [
        ("engine", _names(said.models)),
        ("tasks", f"{said.tasks} of {said.benchmark}{several}; failed: {_counts(said.failures)}"),
    ]
    if said.metric is not None:
        unjudged = f", {said.unjudged} could not be judged" if said.unjudged else ""
        rows.append((said.metric, f"{with_interval(said)}, {said.perfect} with full marks{unjudged}"))
    if said.samples > 1 and said.metric is not None:
        rows.append(("pass@k", ", ".join(f"{k}: {share:.1%}" for k, share in said.pass_at.items()) or "none"))
        rows.append(("majority", f"{said.majority:.1%}; best by verifier {said.best_by_verifier:.1%}"))
    rows += [
        ("endings", _counts(said.endings)),
        ("turns", _spread(said.turns, "{:.1f}")),
        ("seconds", _spread(said.seconds, "{:.2f}")),
        ("tools", f"{said.tool_calls} calls, {said.tool_error_rate:.1%} failed; {_tools(said)}"),
        (
            "calls per task",
            ", ".join(f"{role} {count:.1f}" for role, count in said.calls_per_task.items()) or "none",
        ),
        ("usage", f"{said.tokens:,} tokens{_cost(said)}"),
    ]
    rows += [("tool dropped", f"{name}: {why}") for name, why in said.dropped_tools.items()]
    return rows + [(f"failed {task.task_id}", task.why) for task in said.failed_tasks]


def _names(models: Mapping[str, str]) -> str:
    if len(set(models.values())) == 1:
        return next(iter(models.values()))
    return ", ".join(f"{role} {name}" for role, name in models.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _spread(spread: Spread, form: str) -> str:
    mean, half, most = (form.format(value) for value in (spread.mean, spread.p50, spread.p95))
    return f"mean {mean}, median {half}, 95th percentile {most}"


def _tools(said: RolloutSummary) -> str:
    return ", ".join(f"{tool} {use.share:.0%}" for tool, use in said.tool_use.items()) or "none used"


def _cost(said: RolloutSummary) -> str:
    return f", cost {sum(said.cost.values()):.4f}" if said.cost else ""
