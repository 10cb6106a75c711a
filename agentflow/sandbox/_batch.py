"""Batches of calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from agentflow._typeguards import is_mapping
from agentflow.actors import together
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers import ToolResult
from mcp_servers.core import did_you_mean

Call: TypeAlias = tuple[str, Mapping[str, object]] | Mapping[str, object]
"""`("bash:run", {"command": "ls"})`, or `{"tool": "bash:run", "arguments": {"command": "ls"}, "timeout": 5}`;
the documented names `action` and `params` are accepted, too.
"""

Execute: TypeAlias = Callable[..., Awaitable[ToolResult]]

_KEYS = {
    "tool": "tool",
    "action": "tool",
    "arguments": "arguments",
    "params": "arguments",
    "timeout": "timeout",
}


async def run_batch(
    execute: Execute, calls: Sequence[Call], *, parallel: bool, stop_on_error: bool
) -> list[ToolResult]:
    """Return a result for each call, in order. See `Sandbox.execute_batch`."""
    if parallel and stop_on_error:
        raise ConfigurationError(
            "execute_batch: choose parallel or stop_on_error: calls at once have no order to stop in"
        )
    steps = [_bound(execute, call, number) for number, call in enumerate(calls)]
    if parallel:
        return await together(steps)
    results: list[ToolResult] = []
    for number, step in enumerate(steps):
        results.append(await step())
        if stop_on_error and not results[-1].ok:
            skipped = ToolFailure(ErrorKind.CANCELLED, f"not called: call {number} of the batch failed.")
            return results + [ToolResult.failed(skipped) for _ in steps[number + 1 :]]
    return results


def _bound(execute: Execute, call: Call, number: int) -> Callable[[], Awaitable[ToolResult]]:
    """Return a function that makes a call.

    :raises ConfigurationError: if the call is malformed.
    """
    if isinstance(call, tuple):
        return partial(execute, call[0], call[1], timeout=None)
    unknown = [key for key in call if key not in _KEYS]
    if unknown:
        raise ConfigurationError(
            f"call {number} of the batch: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], _KEYS)}"
        )
    parts = {_KEYS[key]: value for key, value in call.items() if value is not None}
    tool, arguments, timeout = parts.get("tool"), parts.get("arguments", {}), parts.get("timeout")
    if not (isinstance(tool, str) and is_mapping(arguments) and isinstance(timeout, int | float | None)):
        raise ConfigurationError(
            f"call {number} of the batch: needs a 'tool', and may have 'arguments' and a 'timeout'"
        )
    return partial(execute, tool, arguments, timeout=timeout)
