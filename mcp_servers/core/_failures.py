"""Turns whatever a tool raises into a typed failure."""

import logging

from agentflow.errors import CannotFork, ErrorKind, InstanceGone, IsolationUnavailable, ToolFailure

__all__ = ["failure_of"]

logger = logging.getLogger(__name__)

_KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (CannotFork, ErrorKind.CANNOT_FORK),
    (InstanceGone, ErrorKind.SESSION_NOT_FOUND),
    (IsolationUnavailable, ErrorKind.UNAVAILABLE),
    (TimeoutError, ErrorKind.TIMEOUT),
    (FileNotFoundError, ErrorKind.NOT_FOUND),
    (PermissionError, ErrorKind.DENIED),
)
"""What an exception means for the caller, where its type says so."""


def failure_of(error: Exception, tool: str) -> ToolFailure:
    """The failure to report; what nobody expected is logged with its traceback."""
    if isinstance(error, ToolFailure):
        return error
    for kind, meaning in _KINDS:
        if isinstance(error, kind):
            return ToolFailure(meaning, f"{tool}: {_line(error)}")
    logger.error("tool %s failed", tool, exc_info=error)
    return ToolFailure(ErrorKind.FAILED, f"{tool}: {type(error).__name__}: {_line(error)}")


def _line(error: Exception) -> str:
    """The exception's message on one line of bounded length."""
    text = " ".join(str(error).split())
    return text if len(text) <= 500 else text[:500] + " …"
