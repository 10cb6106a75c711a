"""Bodies of MCP requests: any bytes are answered with JSON, and any headers are read by the proxy of several."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from mcp_servers import HttpOptions, ToolTable
from mcp_servers.serving._endpoints import TableEndpoints
from mcp_servers.serving._http import Guard
from mcp_servers.serving._http_framing import FramingError, MessageHead
from mcp_servers.serving._server_names import named_server
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import LEGACY, MODERN, headers_of, opened, request

URL = "http://127.0.0.1:1/mcp"
MESSAGES = (
    request("tools/list"),
    request("tools/call", {"name": "counter_echo", "arguments": {"text": 'a, "b" [c] {d}'}}),
    request("tools/call", {"name": "counter_add", "arguments": {"session": "session-1", "amount": 1.5e3}}),
    request("tools/call", {"name": "session_start", "arguments": {"settings": {"counter": {"start": 1}}}}),
    request("resources/read", {"uri": "agentflow://session-1/1/x?offset=0&length=5"}),
    request("resources/list", {"cursor": "1"}),
    request("prompts/get", {"name": "guide"}),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
)
PIECES = (
    b"[" * 9_000,
    b'{"a":' * 9_000,
    b"[]," * 20_000,
    b"9" * 5_000,
    b"\\ud800",
    b"NaN",
    b"\xff",
    b'"id":null,',
)


@asynccontextmanager
async def application() -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server in this process, which raises the errors of the server."""
    options = HttpOptions(port=1)
    async with ToolTable([Counter()]) as table, anyio.create_task_group() as group:
        endpoints = TableEndpoints(table, options)
        await group.start(endpoints.run)
        guard = Guard(endpoints, options, 1)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard)) as http:
            yield http
        endpoints.close()


def body(case: FuzzCase) -> tuple[bytes, dict[str, str]]:
    """Return a body and the headers of the message that it was."""
    message = case.choice(MESSAGES)
    data = json.dumps(message).encode()
    if case.random() < 0.4:
        place = case.randint(0, len(data))
        data = data[:place] + case.choice(PIECES) + data[place:]
    if case.random() < 0.8:
        data = case.mutated(data)
    return data, headers_of(message)


@fuzzed
@pytest.mark.promise("mcp:http:bad_input")
async def test_any_body_is_answered_with_json(budget: FuzzBudget) -> None:
    async with application() as http:
        legacy = {**await opened(http, URL), "Content-Type": "application/json"}
        for case in budget.cases(short=150):
            with case, anyio.fail_after(60):
                data, headers = body(case)
                if (era := case.choice((MODERN, LEGACY))) == LEGACY:
                    headers = legacy
                answer = await http.post(URL, content=data, headers=headers)
                assert answer.status_code in (200, 202, 400, 404, 413), (era, answer.text)
                # The protocol's errors repeat a name.
                assert len(answer.content) < 2 * len(data) + 50_000
                if answer.content and answer.headers["content-type"] == "application/json":
                    assert answer.json()["jsonrpc"] == "2.0"


@fuzzed
@pytest.mark.promise("mcp:workers:framing")
async def test_the_proxy_reads_any_head_without_another_error(budget: FuzzBudget) -> None:
    for case in budget.cases(short=1_500):
        with case:
            data, headers = body(case)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
            head = b"POST /mcp HTTP/1.1\r\n" + lines + case.mutated(data[:200])
            try:
                found = MessageHead.parse(head)
                named_server(found.fields)
                found.request_body().take(data)
            except FramingError as error:
                assert "\n" not in str(error)
