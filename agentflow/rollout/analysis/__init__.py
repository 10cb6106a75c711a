"""Analysis of finished rollouts: tables and a chart of their scores. See docs/analyse.md."""

from agentflow.rollout.analysis._runs import (
    AnalysedRun,
    AnalysisTable,
    draw,
    find_runs,
    render_summary,
    tables_of,
    with_interval,
)

__all__ = [
    "AnalysedRun",
    "AnalysisTable",
    "draw",
    "find_runs",
    "render_summary",
    "tables_of",
    "with_interval",
]
