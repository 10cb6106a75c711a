"""Structured logs on stderr, with secrets masked, and traces and metrics by OpenTelemetry. See docs/settings.md, docs/tracing.md."""

from agentflow.telemetry import _conventions as conventions
from agentflow.telemetry._logs import Level, configure_logging, get_logger
from agentflow.telemetry._setup import flush_tracing, start_tracing, tracing_to
from agentflow.telemetry._spans import (
    Operation,
    RunTrace,
    captures_content,
    carry_trace,
    current_trace,
    mark_spans,
    model_operation,
    observe_queue,
    record_score,
    role_operation,
    seed_trace_id,
    silent_spans,
    step_operation,
    tool_operation,
)

__all__ = [
    "Level",
    "Operation",
    "RunTrace",
    "captures_content",
    "carry_trace",
    "configure_logging",
    "conventions",
    "current_trace",
    "flush_tracing",
    "get_logger",
    "mark_spans",
    "model_operation",
    "observe_queue",
    "record_score",
    "role_operation",
    "seed_trace_id",
    "silent_spans",
    "start_tracing",
    "step_operation",
    "tool_operation",
    "tracing_to",
]
