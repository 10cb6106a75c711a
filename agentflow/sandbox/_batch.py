"""Batches of calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import anyio

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox._tool_host import failed
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


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    arguments: Mapping[str, object]
    timeout: float | None


async def run_batch(
    execute: Execute, calls: Sequence[Call], *, parallel: bool, stop_on_error: bool
) -> list[ToolResult]:
    """Return a result for each call, in order. See `Sandbox.execute_batch`."""
    if parallel and stop_on_error:
        raise ConfigurationError(
            "execute_batch: choose parallel or stop_on_error: calls at once have no order to stop in"
        )
    steps = [partial(_run, execute, _read(call, number)) for number, call in enumerate(calls)]
    return await (_all_at_once(steps) if parallel else _in_order(steps, stop_on_error=stop_on_error))


Step: TypeAlias = Callable[[], Awaitable[ToolResult]]


async def _run(execute: Execute, call: _Call) -> ToolResult:
    return await execute(call.tool, call.arguments, timeout=call.timeout)


async def _in_order(steps: Sequence[Step], *, stop_on_error: bool) -> list[ToolResult]:
    results: list[ToolResult] = []
    stopped: int | None = None
    for number, step in enumerate(steps):
        if stopped is not None:
            message = f"not called: call {stopped} of the batch failed."
            results.append(failed(ToolFailure(ErrorKind.CANCELLED, message)))
            continue
        results.append(await step())
        if stop_on_error and not results[-1].ok:
            stopped = number
    return results


async def _all_at_once(steps: Sequence[Step]) -> list[ToolResult]:
    results: dict[int, ToolResult] = {}

    async def keep(number: int, step: Step) -> None:
        results[number] = await step()

    async with anyio.create_task_group() as group:
        for number, step in enumerate(steps):
            group.start_soon(keep, number, step)
    return [results[number] for number in range(len(steps))]


def _read(call: Call, number: int) -> _Call:
    """Normalise a call."""
    if isinstance(call, tuple):
        return _Call(call[0], call[1], None)
    unknown = [key for key in call if key not in _KEYS]
    if unknown:
        raise ConfigurationError(
            f"call {number} of the batch: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], _KEYS)}"
        )
    parts = {_KEYS[key]: value for key, value in call.items() if value is not None}
    tool, timeout = parts.get("tool"), parts.get("timeout")
    arguments: object = parts.get("arguments", {})
    if not (isinstance(tool, str) and is_mapping(arguments) and isinstance(timeout, int | float | None)):
        raise ConfigurationError(
            f"call {number} of the batch: needs a 'tool', and may have 'arguments' and a 'timeout'"
        )
    return _Call(tool, arguments, timeout)
