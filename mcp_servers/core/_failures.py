"""Typed failures of tool calls, and suggestions for misspelt names."""

import logging
from collections.abc import Iterable

from agentflow.errors import CannotFork, ErrorKind, InstanceGone, IsolationUnavailable, ToolFailure

logger = logging.getLogger(__name__)

_KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (CannotFork, ErrorKind.CANNOT_FORK),
    (InstanceGone, ErrorKind.SESSION_NOT_FOUND),
    (IsolationUnavailable, ErrorKind.UNAVAILABLE),
    (TimeoutError, ErrorKind.TIMEOUT),
    (FileNotFoundError, ErrorKind.NOT_FOUND),
    (PermissionError, ErrorKind.DENIED),
)
"""Exception types with a specific meaning for the caller."""

_MAX_MESSAGE = 500
_MAX_LISTED = 12
_MAX_NAME = 100
_MAX_COMPARED = 2_000


def failure_of(error: Exception, tool: str) -> ToolFailure:
    """Convert any exception to a typed failure; an unexpected one is logged with its traceback."""
    if isinstance(error, ToolFailure):
        return error
    for kind, meaning in _KINDS:
        if isinstance(error, kind):
            return ToolFailure(meaning, f"{tool}: {_line(error)}")
    logger.error("tool %s failed", tool, exc_info=error)
    return ToolFailure(ErrorKind.FAILED, f"{tool}: {type(error).__name__}: {_line(error)}")


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or the list of valid names if they are few, or an empty string.

    Example::

        did_you_mean("bahs", ["bash", "code"])  # " Did you mean 'bash'?"
    """
    import difflib  # only needed for error messages

    if len(wrong) > _MAX_NAME:  # comparing takes time proportional to both lengths
        return ""
    # Names can come from a sandbox, any number of any length.
    names = sorted(name for name in right if len(name) <= _MAX_NAME)[:_MAX_COMPARED]
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {near[0]!r}?"
    if 0 < len(names) <= _MAX_LISTED:
        return f" There are: {', '.join(names)}."
    return ""


def quoted(name: str) -> str:
    """Return a name as a client sent it, in quotes, on one line of bounded length.

    Example::

        quoted("a" * 200)  # "'aaa…aaa'"
    """
    return repr(name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME // 2]}…{name[-_MAX_NAME // 2 :]}")


def _line(error: Exception) -> str:
    """Return the exception's message on one line of bounded length."""
    return one_line(str(error))


def one_line(text: str) -> str:
    """Return a text on one line of bounded length.

    Example::

        one_line("first\\nsecond")  # "first second"
    """
    # The rest of a long text is not looked at.
    text = " ".join(text[: 2 * _MAX_MESSAGE].split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " …"
