"""Scoring: metrics, judges, and summaries of many scores.

`make_metric` returns a metric by name; `score` applies a rule to plain texts. A prediction that could not be
judged is a `failure`, never a wrong answer. Text written by a model is never evaluated as code.
"""

from agentflow.scoring._answers import extract_answer, marked_answer
from agentflow.scoring._choice import chosen_option
from agentflow.scoring._evidence import evidence_score
from agentflow.scoring._judge import Judge
from agentflow.scoring._mathematics import same_answer
from agentflow.scoring._metrics import (
    BY_SOURCE,
    OwnMetric,
    make_metric,
    metric_names,
    metric_of_source,
    needs_judge,
    score,
)
from agentflow.scoring._scored import (
    VERIFIER,
    Embed,
    Interval,
    Metric,
    Scored,
    ScoreGuard,
    ScoreSummary,
    best_of,
    bootstrap,
    confidence_interval,
    majority,
    pass_at,
    summarise,
)

__all__ = [
    "BY_SOURCE",
    "VERIFIER",
    "Embed",
    "Interval",
    "Judge",
    "Metric",
    "OwnMetric",
    "ScoreGuard",
    "ScoreSummary",
    "Scored",
    "best_of",
    "bootstrap",
    "chosen_option",
    "confidence_interval",
    "evidence_score",
    "extract_answer",
    "majority",
    "make_metric",
    "marked_answer",
    "metric_names",
    "metric_of_source",
    "needs_judge",
    "pass_at",
    "same_answer",
    "score",
    "summarise",
]
