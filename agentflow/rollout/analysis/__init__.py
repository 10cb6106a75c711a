"""Analysis of finished rollouts: tables and a chart of their scores. See docs/analyse.md."""

from agentflow.rollout.analysis._chart import draw
from agentflow.rollout.analysis._render import render_summary, with_interval
from agentflow.rollout.analysis._runs import AnalysedRun, AnalysisTable, find_runs, tables_of

__all__ = [
    "AnalysedRun",
    "AnalysisTable",
    "draw",
    "find_runs",
    "render_summary",
    "tables_of",
    "with_interval",
]
