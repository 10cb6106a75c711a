"""Sessions of two servers behind HAProxy with the shipped configuration."""

import re
from typing import Any, cast

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from mcp_servers.core import ERROR_KEY
from mcp_servers.serving._server_names import server_of
from tests.mcp_servers._balancer import TOKEN, balanced
from tests.mcp_servers._program import COUNTER
from tests.mcp_servers._serving import connected

SESSIONS = 200


def data(result: CallToolResult) -> dict[str, Any]:
    """Return the data of a call that must succeed."""
    assert not result.is_error, result
    return cast("dict[str, Any]", result.structured_content)


async def started(client: Client) -> str:
    """Start a session and return its handle."""
    return str(data(await client.call_tool("session_start", {}))["session"])


@pytest.mark.promise("mcp:balancer")
async def test_sessions_and_their_forks_stay_on_their_server_and_no_call_is_misrouted() -> None:
    with anyio.fail_after(300):
        async with balanced(COUNTER) as both, both.client("auto") as modern, both.client("legacy") as legacy:
            await modern.list_tools()
            clients = [modern, legacy]
            handles: dict[str, Client] = {}
            for number in range(SESSIONS):
                client = clients[number % 2]
                handles[await started(client)] = client
            for handle, client in handles.items():
                fork = data(await client.call_tool("session_fork", {"session": handle}))["session"]
                assert server_of(fork) == server_of(handle)
                assert data(await client.call_tool("counter_add", {"session": fork})) == {"count": 1}
                assert data(await client.call_tool("counter_add", {"session": handle})) == {"count": 1}
            names = [server_of(handle) for handle, client in handles.items() if client is modern]
            assert min(names.count("a"), names.count("b")) >= SESSIONS // 8, "both servers get sessions"
            # A call that arrives at the wrong server is passed on, and both count it.
            assert sum([await both.calls(name, "counter_add") for name in "ab"]) == 2 * SESSIONS
            listed = data(await legacy.call_tool("session_list", {}))["sessions"]
            assert len(listed) == 2 * SESSIONS


@pytest.mark.promise("mcp:peers")
async def test_a_call_at_the_wrong_server_is_passed_on_to_that_of_its_session() -> None:
    with anyio.fail_after(120):
        async with (
            balanced(COUNTER) as both,
            connected(both.servers["a"], TOKEN, "legacy") as a,
            connected(both.servers["b"], TOKEN) as b,
        ):
            handle = await started(b)
            assert server_of(handle) == "b"
            assert data(await a.call_tool("counter_add", {"session": handle})) == {"count": 1}
            assert data(await b.call_tool("counter_add", {"session": handle})) == {"count": 2}
            await b.call_tool("counter_story", {"session": handle})
            for resource in (await a.list_resources()).resources:
                assert (await a.read_resource(resource.uri)).contents == (
                    await b.read_resource(resource.uri)
                ).contents


@pytest.mark.promise("mcp:balancer")
async def test_the_sessions_of_a_killed_server_end_with_one_clear_error_and_the_others_continue() -> None:
    async def wait(client: Client | Sandbox, handle: str, messages: list[str]) -> None:
        assert isinstance(client, Sandbox)
        result = await client.execute("counter_wait", {"session": handle})
        assert result.error is not None
        messages.append(f"{result.error.kind}: {result.error.message}")

    with anyio.fail_after(300):
        async with (
            balanced(COUNTER) as both,
            both.client("auto") as client,
            Sandbox(both.url, token=TOKEN) as sandbox,
        ):
            await client.list_tools()
            sessions: dict[str | None, list[str]] = {"a": [], "b": []}
            while min(map(len, sessions.values())) < 5:
                handle = await started(client)
                sessions[server_of(handle)].append(handle)
            messages: list[str] = []
            async with anyio.create_task_group() as group:
                group.start_soon(wait, sandbox, sessions["b"][0], messages)
                while not any(
                    session["running"]
                    for session in data(await client.call_tool("session_list", {}))["sessions"]
                ):
                    continue
                both.running["b"].process.kill()
            await both.running["b"].process.wait()
            # HAProxy closes a connection that has served a request before; on a new one it answers with the error.
            assert re.fullmatch(
                r"session_not_found: .*has ended.*|unavailable: .*the call may have run or not\.", messages[0]
            )
            for handle in sessions["b"]:
                result = await client.call_tool("counter_add", {"session": handle})
                assert result.meta is not None
                assert result.meta[ERROR_KEY]["kind"] == ErrorKind.SESSION_NOT_FOUND
                assert result.meta[ERROR_KEY]["message"].startswith(f"session {handle!r} is gone: ")
            for handle in sessions["a"]:
                assert data(await client.call_tool("counter_add", {"session": handle})) == {"count": 1}
            assert server_of(await started(client)) == "a"


@pytest.mark.promise("mcp:balancer")
async def test_a_balancer_without_servers_answers_with_one_clear_error() -> None:
    with anyio.fail_after(120):
        async with balanced(COUNTER) as both:
            for server in both.running.values():
                server.process.kill()
                await server.process.wait()
            with pytest.raises(ToolFailure, match=r"no server process is available|has ended") as caught:
                async with Sandbox(both.url, token=TOKEN):
                    pass
            assert caught.value.kind == ErrorKind.UNAVAILABLE
