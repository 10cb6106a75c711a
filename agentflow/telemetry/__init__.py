"""Telemetry: what a program says about its own work. For now: logs, to stderr, without secrets."""

from agentflow.telemetry._logs import Level, configure_logging, get_logger

__all__ = ["Level", "configure_logging", "get_logger"]
