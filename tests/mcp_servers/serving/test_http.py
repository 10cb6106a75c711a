"""Streamable HTTP on a real socket: access, answers, shutdown."""

from collections.abc import AsyncGenerator

import anyio
import httpx2
import psutil
import pytest
from mcp import Client

from agentflow.errors import ConfigurationError
from mcp_servers import HttpOptions, HttpServer, ToolTable
from mcp_servers.core import ERROR_KEY
from mcp_servers.serving._http import listen
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import connected, post, request, serving

TOKENS = {"alice": "token-of-alice", "bob": "token-of-bob"}
ALICE = {"Authorization": "Bearer token-of-alice"}
ECHO = request("tools/call", {"name": "counter_echo", "arguments": {"text": "x"}})


@pytest.fixture
async def server(table: ToolTable) -> AsyncGenerator[HttpServer]:
    """A server with two clients' tokens."""
    async with serving(table, HttpOptions(port=0, tokens=TOKENS, body_bytes=10_000)) as server:
        yield server


@pytest.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    """A plain client."""
    async with httpx2.AsyncClient(timeout=30) as http:
        yield http


@pytest.mark.promise("mcp:http:eras")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_called_in_both_eras(server: HttpServer, mode: str) -> None:
    async with connected(server.url, TOKENS["alice"], mode) as client:
        assert (await client.call_tool("counter_echo", {"text": "x"})).structured_content == {"text": "x"}


@pytest.mark.promise("mcp:http:no_session")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_stateful_call_without_a_session_is_advised_to_start_one(
    server: HttpServer, mode: str
) -> None:
    async with connected(server.url, TOKENS["alice"], mode) as client:
        result = await client.call_tool("counter_add", {})
        assert result.is_error
        assert "session_start" in str(result.content)
        started = await client.call_tool("session_start", {})
        assert started.structured_content is not None
        handle = started.structured_content["session"]
        assert (await client.call_tool("counter_add", {"session": handle})).structured_content == {"count": 1}


@pytest.mark.promise("mcp:http:owner")
async def test_a_session_and_its_resources_belong_to_its_token(server: HttpServer) -> None:
    async with (
        connected(server.url, TOKENS["alice"]) as alice,
        connected(server.url, TOKENS["bob"]) as bob,
    ):
        started = await alice.call_tool("session_start", {})
        assert started.structured_content is not None
        handle = started.structured_content["session"]
        await alice.call_tool("counter_story", {"session": handle})
        refused = await bob.call_tool("counter_add", {"session": handle})
        assert refused.meta is not None
        assert refused.meta[ERROR_KEY]["kind"] == "session_not_found"
        assert (await bob.list_resources()).resources == []
        assert len((await alice.list_resources()).resources) == 2


@pytest.mark.promise("mcp:http:token")
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic token-of-alice"}]
)
async def test_a_request_without_a_valid_token_is_refused(
    server: HttpServer, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    response = await post(http, server.url, ECHO, headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert "token" in response.json()["error"]["message"]


@pytest.mark.promise("mcp:http:origin")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_web_page_cannot_reach_the_server_through_its_visitor(
    server: HttpServer, http: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    assert (await post(http, server.url, ECHO, {**ALICE, **headers})).status_code == status


async def test_a_page_of_an_allowed_origin_gets_cors_headers(
    table: ToolTable, http: httpx2.AsyncClient
) -> None:
    options = HttpOptions(port=0, tokens=TOKENS, allowed_origins=("https://app.example",))
    async with serving(table, options) as server:
        asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        preflight = await http.options(server.url, headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        response = await post(http, server.url, ECHO, {**ALICE, "Origin": "https://app.example"})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.promise("mcp:http:rate")
async def test_a_client_over_the_rate_limit_is_told_when_to_retry(
    table: ToolTable, http: httpx2.AsyncClient
) -> None:
    async with serving(table, HttpOptions(port=0, tokens=TOKENS, requests_per_minute=2)) as server:
        statuses = [(await post(http, server.url, ECHO, ALICE)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = await post(http, server.url, ECHO, ALICE)
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        bob = {"Authorization": f"Bearer {TOKENS['bob']}"}
        assert (await post(http, server.url, ECHO, bob)).status_code == 200


@pytest.mark.promise("mcp:calls:busy")
async def test_calls_beyond_the_waiting_limit_are_refused_as_busy(table: ToolTable, counter: Counter) -> None:
    session = await table.sessions.start("alice")
    options = HttpOptions(port=0, tokens=TOKENS, max_concurrent_calls=1, max_waiting_calls=0)

    async def wait(client: Client) -> None:
        await client.call_tool("counter_wait", {"session": session.handle})

    with anyio.fail_after(60):
        async with (
            serving(table, options) as server,
            connected(server.url, TOKENS["alice"]) as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(wait, client)
            await counter.entered.wait()
            busy = await client.call_tool("counter_echo", {"text": "x"})
            assert busy.meta is not None
            assert busy.meta[ERROR_KEY]["kind"] == "busy"
            released = await client.call_tool("counter_let_go", {"session": session.handle})
            assert not released.is_error, "a call that acts on another one needs no turn"


@pytest.mark.promise("mcp:http:paths")
async def test_each_backend_is_served_alone_at_its_path(server: HttpServer, http: httpx2.AsyncClient) -> None:
    alone = server.url.replace("/mcp", "/counter/mcp")
    async with connected(alone, TOKENS["alice"]) as client:
        assert (await client.call_tool("counter_echo", {"text": "x"})).structured_content == {"text": "x"}
    missing = await post(http, server.url.replace("/mcp", "/countr/mcp"), ECHO, ALICE)
    assert missing.status_code == 404
    assert "/counter/mcp" in missing.json()["error"]["message"]


async def test_health_needs_no_token(server: HttpServer, http: httpx2.AsyncClient) -> None:
    response = await http.get(server.url.replace("/mcp", "/health"))
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.promise("mcp:http:bad_input")
@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[]", 400, -32600),
        (b"7", 400, -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', 400, -32600),
        (b"[" * 9_000, 400, -32700),
    ],
)
async def test_malformed_messages_are_answered_with_an_error_and_the_server_continues(
    server: HttpServer, http: httpx2.AsyncClient, content: bytes, status: int, code: int
) -> None:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": "2026-07-28",
    }
    response = await http.post(server.url, content=content, headers={**ALICE, **headers})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert (await post(http, server.url, ECHO, ALICE)).status_code == 200


@pytest.mark.promise("mcp:http:body")
async def test_an_oversized_body_is_refused_and_the_server_continues(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    message = request("tools/call", {"name": "counter_echo", "arguments": {"text": "x" * 20_000}})
    assert (await post(http, server.url, message, ALICE)).status_code == 413

    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    headers = {**ALICE, "Content-Type": "application/json"}
    assert (await http.post(server.url, content=endless(), headers=headers)).status_code == 413
    assert (await post(http, server.url, ECHO, ALICE)).status_code == 200


@pytest.mark.promise("mcp:http:disconnect")
async def test_a_client_that_disconnects_stops_its_call(
    server: HttpServer, counter: Counter, table: ToolTable
) -> None:
    session = await table.sessions.start("alice")
    message = request("tools/call", {"name": "counter_wait", "arguments": {"session": session.handle}})
    with anyio.fail_after(60):
        async with httpx2.AsyncClient(timeout=30) as http, anyio.create_task_group() as group:
            group.start_soon(post, http, server.url, message, ALICE)
            await counter.entered.wait()
            group.cancel_scope.cancel()
        await counter.stopped.wait()


@pytest.mark.promise("mcp:http:no_leaks")
async def test_clients_that_disconnect_leave_no_slot_session_or_descriptor(
    table: ToolTable, counter: Counter
) -> None:
    session = await table.sessions.start("alice")
    message = request("tools/call", {"name": "counter_wait", "arguments": {"session": session.handle}})
    process = psutil.Process()

    async def go_away(url: str) -> None:
        counter.entered, counter.stopped = anyio.Event(), anyio.Event()
        async with httpx2.AsyncClient(timeout=30) as http, anyio.create_task_group() as group:
            group.start_soon(post, http, url, message, ALICE)
            await counter.entered.wait()
            group.cancel_scope.cancel()
        await counter.stopped.wait()

    with anyio.fail_after(60):
        async with serving(
            table, HttpOptions(port=0, tokens=TOKENS, max_concurrent_calls=1, max_waiting_calls=0)
        ) as server:
            await go_away(server.url)
            before = process.num_fds()
            for _ in range(20):
                await go_away(server.url)
            await anyio.wait_all_tasks_blocked()
            assert process.num_fds() <= before
            async with connected(server.url, TOKENS["alice"]) as client:
                assert not (await client.call_tool("counter_echo", {"text": "x"})).is_error
            assert session.gate.running == 0
            assert len(table.sessions) == 1


@pytest.mark.promise("mcp:http:cancelled")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_its_client_cancels_is_stopped_and_the_connection_continues(
    server: HttpServer, counter: Counter, table: ToolTable, mode: str
) -> None:
    session = await table.sessions.start("alice")

    async def call(client: Client) -> None:
        await client.call_tool("counter_wait", {"session": session.handle})

    with anyio.fail_after(60):
        async with connected(server.url, TOKENS["alice"], mode) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(call, client)
                await counter.entered.wait()
                group.cancel_scope.cancel()
            await counter.stopped.wait()
            assert not (await client.call_tool("counter_echo", {"text": "x"})).is_error


@pytest.mark.promise("mcp:http:stop")
async def test_stopping_lets_calls_finish_refuses_new_ones_and_leaves_no_session(
    table: ToolTable, counter: Counter, http: httpx2.AsyncClient
) -> None:
    session = await table.sessions.start("alice")
    wait = request("tools/call", {"name": "counter_wait", "arguments": {"session": session.handle}})
    answers: list[httpx2.Response] = []

    async def call(url: str) -> None:
        answers.append(await post(http, url, wait, ALICE))

    with anyio.fail_after(60):
        async with (
            serving(table, HttpOptions(port=0, tokens=TOKENS)) as server,
            anyio.create_task_group() as group,
        ):
            warm = httpx2.AsyncClient(timeout=30)
            await post(warm, server.url, ECHO, ALICE)
            group.start_soon(call, server.url)
            await counter.entered.wait()
            server.stop()
            await anyio.wait_all_tasks_blocked()
            refused = await post(warm, server.url, ECHO, ALICE)
            assert refused.status_code == 503
            counter.release.set()
            await warm.aclose()
    assert answers[0].json()["result"]["structuredContent"] == {"count": 0}
    assert len(table.sessions) == 0


async def test_stopping_kills_calls_that_do_not_finish_in_time(
    table: ToolTable, counter: Counter, http: httpx2.AsyncClient
) -> None:
    session = await table.sessions.start("alice")
    wait = request("tools/call", {"name": "counter_wait", "arguments": {"session": session.handle}})
    answers: list[httpx2.Response] = []

    async def call(url: str) -> None:
        answers.append(await post(http, url, wait, ALICE))

    with anyio.fail_after(60):
        options = HttpOptions(port=0, tokens=TOKENS, grace_seconds=0.05)
        async with serving(table, options) as server, anyio.create_task_group() as group:
            group.start_soon(call, server.url)
            await counter.entered.wait()
            server.stop()
    assert counter.events[-2:] == ["cancelled", "cleanup"]
    assert answers[0].json()["result"]["isError"]


async def test_a_listening_client_does_not_keep_the_server_from_stopping(table: ToolTable) -> None:
    with anyio.fail_after(60):
        async with (
            serving(table, HttpOptions(port=0, tokens=TOKENS)) as server,
            connected(server.url, TOKENS["alice"], "legacy") as client,
        ):
            await client.call_tool("counter_echo", {"text": "x"})
            server.stop()


def test_a_non_loopback_address_needs_a_token() -> None:
    with pytest.raises(ConfigurationError, match="set a token"):
        HttpOptions(host="0.0.0.0").check()
    HttpOptions(host="0.0.0.0", tokens=TOKENS).check()
    HttpOptions(host="127.0.0.1").check()


async def test_an_address_in_use_is_reported_in_one_line(table: ToolTable) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127\.0\.0\.1:{port}: "):
            HttpServer(table, HttpOptions(port=port))
