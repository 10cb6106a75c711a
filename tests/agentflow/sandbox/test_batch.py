from collections.abc import Mapping

import anyio
import pytest

from agentflow.errors import ConfigurationError, ErrorKind
from agentflow.sandbox import Call, Sandbox, ToolResult
from agentflow.sandbox._sandbox import run_batch
from tests.agentflow.sandbox._backends import CounterBackend, EchoBackend
from tests.agentflow.sandbox._hosts import HOSTS, Host, opened

on_both_hosts = pytest.mark.parametrize("host", HOSTS)


@on_both_hosts
@pytest.mark.promise("sandbox:batch:order")
async def test_a_batch_runs_in_order_and_continues_after_an_error(host: Host) -> None:
    calls: list[Call] = [("up", {}), ("up", {"by": -1}), ("up", {"by": 5}), ("nowhere:to", {}), ("up", {})]
    async with opened(host, CounterBackend()) as sandbox:
        results = await sandbox.execute_batch(calls)
    assert [result.data.get("result") for result in results] == [1, None, 6, None, 7]


@on_both_hosts
@pytest.mark.promise("sandbox:batch:stop")
async def test_stop_on_error_makes_no_call_after_the_first_failed_one(host: Host) -> None:
    backend = EchoBackend()
    calls: list[Call] = [("say", {"text": "a"}), ("refuse", {"kind": "denied"}), ("say", {"text": "b"})]
    async with opened(host, backend) as sandbox:
        results = await sandbox.execute_batch(calls, stop_on_error=True)
    assert [result.ok for result in results] == [True, False, False]
    assert results[2].error is not None
    assert results[2].error.kind is ErrorKind.CANCELLED
    assert "call 1" in results[2].error.message
    assert backend.calls == 1


@pytest.mark.promise("sandbox:batch:parallel")
async def test_a_parallel_batch_runs_all_calls_at_once_and_keeps_their_order() -> None:
    running, all_running = 0, anyio.Event()

    async def execute(tool: str, arguments: Mapping[str, object], *, timeout: float | None) -> ToolResult:
        nonlocal running
        running += 1
        if running == 3:
            all_running.set()
        await all_running.wait()
        return ToolResult(True, {"tool": tool, "timeout": timeout})

    calls: list[Call] = [("a", {}), {"tool": "b", "timeout": 2}, {"action": "c", "params": {}}]
    with anyio.fail_after(60):
        results = await run_batch(execute, calls, parallel=True, stop_on_error=False)
    assert [result.data for result in results] == [
        {"tool": "a", "timeout": None},
        {"tool": "b", "timeout": 2},
        {"tool": "c", "timeout": None},
    ]


@pytest.mark.promise("sandbox:batch:readable")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"tol": "a"}, "call 0 of the batch: unknown key 'tol'. Did you mean 'tool'?"),
        ({"arguments": {}}, "needs a 'tool'"),
        ({"tool": "a", "arguments": [1]}, "may have 'arguments'"),
        ({"tool": "a", "timeout": "soon"}, "'timeout'"),
    ],
)
async def test_an_invalid_call_is_refused_before_any_is_run(call: Mapping[str, object], says: str) -> None:
    async with Sandbox(backends=[EchoBackend()]) as sandbox:
        with pytest.raises(ConfigurationError, match=says):
            await sandbox.execute_batch([call])


@pytest.mark.promise("sandbox:batch:readable")
async def test_stop_on_error_is_refused_for_parallel_calls() -> None:
    async with Sandbox(backends=[EchoBackend()]) as sandbox:
        with pytest.raises(ConfigurationError, match="parallel or stop_on_error"):
            await sandbox.execute_batch([], parallel=True, stop_on_error=True)
