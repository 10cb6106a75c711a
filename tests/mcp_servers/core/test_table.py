"""The tool table: one way to call, every failure typed."""

import asyncio
import logging

import anyio
import pytest
from mcp import Client

from agentflow.errors import ConfigurationError, ErrorKind
from agentflow.sandbox import Sandbox
from agentflow.testing import VirtualTimeLoop
from mcp_servers import Image, TableLimits, TextContent, ToolResult, ToolTable
from mcp_servers.core import LOCAL, DefaultSession
from mcp_servers.serving import McpAdapter
from tests.mcp_servers._counter import Counter, Discoverer


def failure(result: ToolResult) -> tuple[ErrorKind, str]:
    """Return the kind and message of a failed call."""
    assert not result.ok
    assert result.error is not None
    return result.error.kind, result.error.message


async def started(table: ToolTable, principal: str = "local") -> str:
    """The handle of a new session."""
    result = await table.call("session_start", principal=principal)
    handle = result.data["session"]
    assert isinstance(handle, str)
    return handle


@pytest.mark.promise("mcp:call:names")
async def test_a_tool_is_called_by_its_name_or_its_route(table: ToolTable) -> None:
    by_name = await table.call("counter_echo", {"text": "x"})
    by_route = await table.call("counter:echo", {"text": "x"})
    assert by_name == by_route == ToolResult(True, {"text": "x"})


@pytest.mark.promise("mcp:call:tool_not_found")
async def test_a_wrong_name_is_refused_with_a_suggestion(table: ToolTable) -> None:
    assert failure(await table.call("counter_ecco")) == (
        ErrorKind.TOOL_NOT_FOUND,
        "no tool 'counter_ecco'. Did you mean 'counter_echo'?",
    )
    assert "Did you mean 'counter:echo'?" in failure(await table.call("counter:ecco"))[1]


async def test_wrong_arguments_are_refused_and_the_tool_is_not_run(
    table: ToolTable, counter: Counter
) -> None:
    handle = await started(table)
    kind, message = failure(await table.call("counter_add", {"session": handle, "amount": -1}))
    assert kind is ErrorKind.BAD_ARGUMENTS
    assert "'amount'" in message
    assert (await table.call("counter_add", {"session": handle})).data == {"count": 1}


async def test_a_stateful_tool_without_a_session_says_how_to_get_one(table: ToolTable) -> None:
    kind, message = failure(await table.call("counter_add"))
    assert kind is ErrorKind.BAD_ARGUMENTS
    assert "session_start" in message


async def test_a_session_that_is_not_a_string_is_a_bad_argument(table: ToolTable) -> None:
    assert failure(await table.call("counter_add", {"session": 5}))[0] is ErrorKind.BAD_ARGUMENTS


@pytest.mark.promise("mcp:session:default")
async def test_the_default_session_starts_on_first_use_and_again_after_its_end(table: ToolTable) -> None:
    default = DefaultSession(table.sessions, "local")
    assert len(table.sessions) == 0
    await table.call("counter_add", session=default)
    assert (await table.call("counter_add", session=default)).data == {"count": 2}
    await table.call("session_end", session=default)
    assert (await table.call("counter_add", session=default)).data == {"count": 1}
    await default.close()
    assert len(table.sessions) == 0


async def test_a_call_that_acts_on_another_one_may_be_a_session_s_first(
    table: ToolTable, counter: Counter
) -> None:
    handle = await started(table)
    assert (await table.call("counter_let_go", {"session": handle})).ok
    assert counter.events == ["warmup", "initialize"]
    listed = (await table.call("session_list")).data["sessions"]
    assert isinstance(listed, list)
    assert listed[0]["backends"] == ["counter"]


@pytest.mark.promise("mcp:call:failed")
async def test_a_tool_failure_keeps_its_kind_data_and_parts(
    table: ToolTable,
) -> None:
    result = await table.call("counter_fail")
    assert failure(result) == (ErrorKind.DENIED, "not today")
    assert result.data == {"stdout": "half"}
    assert result.parts == (TextContent("the part that worked"),)


async def test_an_unexpected_exception_is_one_line_and_logged(
    table: ToolTable, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        result = await table.call("counter_crash")
    assert failure(result) == (ErrorKind.FAILED, "counter_crash: ZeroDivisionError: of all things")
    assert "Traceback" in caplog.text


@pytest.mark.promise("mcp:call:timeout")
def test_a_call_that_times_out_is_stopped(counter: Counter) -> None:
    async def calls() -> None:
        async with ToolTable([counter]) as table:
            handle = await started(table)
            result = await table.call("counter_wait", {"session": handle}, timeout=5)
            assert failure(result)[0] is ErrorKind.TIMEOUT
            assert counter.events[-1] == "cancelled"
            assert (await table.call("counter_add", {"session": handle})).ok

    # In virtual time the call waits before its limit, however slow the machine is.
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(calls())


async def test_the_table_s_shorter_time_limit_applies(counter: Counter) -> None:
    async with ToolTable([counter], limits=TableLimits(call_seconds=0.01)) as table:
        with anyio.fail_after(60):
            result = await table.call("counter_wait", {"session": await started(table)}, timeout=60)
    assert failure(result)[0] is ErrorKind.TIMEOUT


@pytest.mark.promise("mcp:call:cancelled")
async def test_cancelling_the_caller_stops_its_programs(table: ToolTable, counter: Counter) -> None:
    handle = await started(table)

    async def call() -> None:
        await table.call("counter_wait", {"session": handle})
        raise AssertionError("the call should have been cancelled")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await counter.entered.wait()
            group.cancel_scope.cancel()
    assert counter.events[-1] == "cancelled"
    assert table.sessions.list("local")[0].gate.running == 0


async def test_an_image_is_a_part_of_the_result(table: ToolTable) -> None:
    result = await table.call("counter_picture")
    assert isinstance(result.parts[0], Image)


@pytest.mark.promise("mcp:call:progress")
async def test_progress_reaches_a_caller_that_asks_for_it(table: ToolTable) -> None:
    steps: list[tuple[float, float | None, str | None]] = []

    def record(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    await table.call("counter_steps", {"number": 2}, progress=record)
    assert steps == [(1, 2, "step 1"), (2, 2, "step 2")]


@pytest.mark.promise("mcp:backend:life")
async def test_a_backend_lives_through_warmup_initialize_fork_cleanup_and_shutdown(counter: Counter) -> None:
    async with ToolTable([counter]) as table:
        handle = await started(table)
        assert counter.events == ["warmup"]
        await table.call("counter_add", {"session": handle})
        await table.call("counter_add", {"session": handle})
        await table.call("session_fork", {"session": handle})
        assert counter.events == ["warmup", "initialize", "fork"]
    assert counter.events == ["warmup", "initialize", "fork", "cleanup", "cleanup", "shutdown"]


async def test_a_cold_backend_is_warmed_up_on_first_use(counter: Counter) -> None:
    table = ToolTable([counter])
    await table.start([])
    assert counter.events == []
    await table.call("counter_echo", {"text": "x"})
    await table.call("counter_echo", {"text": "x"})
    assert counter.events == ["warmup"]
    await table.close()


async def test_an_unused_backend_is_not_shut_down(counter: Counter) -> None:
    table = ToolTable([counter])
    await table.start([])
    await table.close()
    assert counter.events == []


def test_two_backends_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'counter' already exists"):
        ToolTable([Counter(), Counter()])


async def test_without_a_runtime_a_session_has_no_instance(table: ToolTable) -> None:
    session = await table.sessions.start("local")
    with pytest.raises(Exception, match="no runtime"):
        await session.instance()


@pytest.mark.promise("mcp:backend:discovers")
async def test_discovered_tools_exist_after_warmup_and_may_change_later() -> None:
    discoverer = Discoverer()
    table = ToolTable([Counter(), discoverer])
    assert not [tool for tool in table.tools if tool.backend == "found"]
    await table.start(["found"])
    first = table.edition
    assert [tool.name for tool in table.tools if tool.backend == "found"] == ["found_place_first"]
    assert (await table.call("found:place.first")).data == {"result": "first"}
    discoverer.find("second")
    assert table.edition > first
    assert (await table.call("found_place_second")).data == {"result": "second"}
    gone = await table.call("found_place_first")
    assert gone.error is not None
    assert gone.error.kind is ErrorKind.TOOL_NOT_FOUND
    assert (await table.call("counter_echo", {"text": "x"})).ok
    await table.close()


@pytest.mark.promise("mcp:backend:discovers")
async def test_an_endpoint_lists_the_current_tools() -> None:
    discoverer = Discoverer()
    async with ToolTable([discoverer]) as table:
        server = McpAdapter(table, principal=lambda _: LOCAL).server()
        async with Client(server, cache=None) as client:
            assert "found_place_first" in {tool.name for tool in (await client.list_tools()).tools}
            discoverer.find("second")
            assert "found_place_second" in {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("found_place_second", {})
            assert result.structured_content == {"result": "second"}


@pytest.mark.promise("mcp:backend:discovers")
async def test_a_sandbox_has_the_discovered_tools_from_its_start() -> None:
    discoverer = Discoverer()
    async with Sandbox(backends=[discoverer]) as sandbox:
        assert [tool.route for tool in await sandbox.tools()] == ["found:place.first"]
        assert (await sandbox.execute("found:place.first")).data == {"result": "first"}
        discoverer.find("second")
        assert (await sandbox.execute("found_place_second")).data == {"result": "second"}
