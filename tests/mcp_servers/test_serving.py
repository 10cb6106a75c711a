"""Status endpoints of a server, and the scopes of its clients."""

from collections.abc import AsyncGenerator

import anyio
import httpx2
import pytest

from agentflow.errors import ConfigurationError
from agentflow.settings import load_settings
from mcp_servers import Backend, HttpOptions, HttpServer, ToolTable
from mcp_servers.core import ERROR_KEY
from mcp_servers.core._call import ToolResult
from mcp_servers.serving._metrics import Metrics
from mcp_servers.serving._settings import ServerSettings
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._now import Now
from tests.mcp_servers._serving import connected, serving

TOKENS = {"alice": "token-of-alice", "bob": "token-of-bob"}
BOB = {"Authorization": "Bearer token-of-bob"}


class Second(Counter):
    """Another backend, with its own tool names."""

    name = "second"


class Slow(Backend):
    """Slow to warm up."""

    name = "slow"
    description = "Slow."

    def __init__(self) -> None:
        self.resume = anyio.Event()
        self.warm = anyio.Event()

    async def warmup(self) -> None:
        await self.resume.wait()
        self.warm.set()


class Broken(Backend):
    """Fails to warm up."""

    name = "broken"
    description = "Broken."

    async def warmup(self) -> None:
        raise ConfigurationError("broken: its index is gone")


@pytest.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    """A plain client."""
    async with httpx2.AsyncClient(timeout=30) as http:
        yield http


@pytest.fixture
async def scoped() -> AsyncGenerator[HttpServer]:
    """Serve two backends, of which Bob may use only one."""
    async with ToolTable([Counter(), Second()]) as table:
        options = HttpOptions(port=0, tokens=TOKENS, scopes={"bob": ["second"]})
        async with serving(table, options) as server:
            yield server


def origin(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.promise("mcp:http:scopes")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_token_with_a_scope_sees_and_calls_only_its_backends(scoped: HttpServer, mode: str) -> None:
    async with (
        connected(scoped.url, TOKENS["alice"], mode) as alice,
        connected(scoped.url, TOKENS["bob"], mode) as bob,
    ):
        everything = {tool.name.partition("_")[0] for tool in (await alice.list_tools()).tools}
        his = {tool.name.partition("_")[0] for tool in (await bob.list_tools()).tools}
        assert everything == {"counter", "second", "session"}
        assert his == {"second", "session"}
        assert (await bob.call_tool("second_echo", {"text": "x"})).structured_content == {"text": "x"}
        calls: list[tuple[str, dict[str, object]]] = [
            ("counter_echo", {"text": "x"}),
            ("session_start", {"backends": ["counter"]}),
            ("session_start", {"settings": {"counter": {}}}),
        ]
        for name, arguments in calls:
            refused = await bob.call_tool(name, arguments)
            assert refused.is_error
            assert refused.meta is not None
            assert refused.meta[ERROR_KEY]["kind"] == "denied"


@pytest.mark.promise("mcp:http:scopes")
async def test_the_endpoint_of_a_backend_refuses_a_token_without_its_scope(
    scoped: HttpServer, http: httpx2.AsyncClient
) -> None:
    refused = await http.post(f"{origin(scoped)}/counter/mcp", headers=BOB)
    assert refused.status_code == 403
    assert "counter" in refused.text


@pytest.mark.promise("mcp:http:scopes")
def test_scopes_are_set_with_the_tokens_in_the_settings() -> None:
    settings = ServerSettings.model_validate(
        {"backends": {"bash": None}, "tokens": {"a": "1", "b": {"token": "2", "backends": ["bash"]}}}
    )
    options = settings.http_options(settings.client_tokens())
    assert options.tokens == {"a": "1", "b": "2"}
    assert options.scopes == {"b": ["bash"]}


@pytest.mark.promise("mcp:http:scopes")
def test_a_scope_with_an_unserved_backend_is_refused_in_one_line() -> None:
    words = ["backends={bash: {}}", "tokens={b: {token: x, backends: [code]}}"]
    with pytest.raises(ConfigurationError, match="b: backend 'code' is not served") as refused:
        load_settings(ServerSettings, None, words)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("mcp:http:ready")
async def test_a_server_answers_during_warmup_and_reports_the_pending_backends(
    http: httpx2.AsyncClient,
) -> None:
    slow = Slow()
    server = HttpServer(ToolTable([Counter(), slow]), HttpOptions(port=0))
    ready = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, ready.set, ["counter", "slow"])
        waiting = await http.get(f"{origin(server)}/ready")
        assert waiting.status_code == 503
        assert (await http.get(f"{origin(server)}/health")).json() == {"status": "ok"}
        async with connected(server.url) as client:
            assert (await client.call_tool("counter_echo", {"text": "x"})).structured_content == {"text": "x"}
        assert (await http.get(f"{origin(server)}/ready")).json()["waiting_for"] == ["slow"]
        assert not ready.is_set()
        slow.resume.set()
        with anyio.fail_after(60):
            await ready.wait()
        assert (await http.get(f"{origin(server)}/ready")).json() == {"ready": True}
        server.stop()


@pytest.mark.promise("mcp:http:ready")
async def test_a_server_can_be_stopped_during_warmup() -> None:
    server = HttpServer(ToolTable([Slow()]), HttpOptions(port=0))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, lambda: None, ["slow"])
            async with httpx2.AsyncClient() as http:
                await http.get(f"{origin(server)}/ready")
            server.stop()


@pytest.mark.promise("mcp:http:ready")
async def test_a_backend_that_fails_to_warm_up_ends_the_server_with_the_reason() -> None:
    server = HttpServer(ToolTable([Broken()]), HttpOptions(port=0))
    with anyio.fail_after(60), pytest.raises(ConfigurationError, match="its index is gone"):
        await server.serve(warmup=["broken"])


@pytest.mark.promise("mcp:http:metrics")
async def test_calls_and_refusals_are_readable_with_a_token(
    scoped: HttpServer, http: httpx2.AsyncClient
) -> None:
    async with connected(scoped.url, TOKENS["bob"]) as bob:
        await bob.call_tool("second_echo", {"text": "x"})
        await bob.call_tool("counter_echo", {"text": "x"})
        await bob.call_tool("session_start", {})
        await bob.call_tool("no_such_tool", {})
    assert (await http.get(f"{origin(scoped)}/metrics")).status_code == 401
    text = (await http.get(f"{origin(scoped)}/metrics", headers=BOB)).text
    for line in (
        'agentflow_calls_total{tool="second_echo",outcome="ok"} 1',
        'agentflow_calls_total{tool="counter_echo",outcome="denied"} 1',
        'agentflow_calls_total{tool="unknown",outcome="tool_not_found"} 1',
        'agentflow_refused_requests_total{status="401"} 1',
        "agentflow_sessions 1",
        "# TYPE agentflow_call_seconds histogram",
    ):
        assert line in text.splitlines()
    assert "no_such_tool" not in text
    assert "token-of" not in text


@pytest.mark.promise("mcp:http:metrics")
def test_call_durations_are_counted_in_buckets() -> None:
    now = Now()
    metrics = Metrics(clock=now)
    for seconds in (0.004, 0.4, 400.0):
        with metrics.call("t") as ended:
            now.seconds += seconds
            ended(ToolResult(True))
    lines = metrics.render({}).splitlines()
    assert 'agentflow_call_seconds_bucket{tool="t",le="0.005"} 1' in lines
    assert 'agentflow_call_seconds_bucket{tool="t",le="300.0"} 2' in lines
    assert 'agentflow_call_seconds_bucket{tool="t",le="+Inf"} 3' in lines
    assert 'agentflow_call_seconds_count{tool="t"} 3' in lines
