"""Structured logs on stderr, with secrets masked. See docs/settings.md."""

from agentflow.telemetry._logs import Level, configure_logging, get_logger

__all__ = ["Level", "configure_logging", "get_logger"]
