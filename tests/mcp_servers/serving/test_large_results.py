"""Results of several megabytes over HTTP, and reads of ranges."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.types import Message, Receive, Scope, Send

from mcp_servers import HttpOptions, HttpServer, TableLimits, ToolTable
from mcp_servers.core import ERROR_KEY, Resource
from mcp_servers.serving._content import ResourceRange
from mcp_servers.serving._post_response import POST_RESPONSE, PostResponse
from tests.mcp_servers._counter import Counter, noise
from tests.mcp_servers._serving import connected, serving

MEGABYTES = 3_000_000
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture
async def server() -> AsyncGenerator[HttpServer]:
    """A server without tokens."""
    async with (
        ToolTable([Counter()], limits=TableLimits()) as table,
        serving(table, HttpOptions(port=0)) as server,
    ):
        yield server


@asynccontextmanager
async def named(url: str, name: str, mode: str = "auto") -> AsyncGenerator[Client]:
    """Connect a client program of that name, which accepts events of any size."""
    info = types.Implementation(name=name, version="1")
    transport = streamable_http_client(url, max_sse_event_size=None)
    async with Client(transport, mode=mode, client_info=info) as client:
        yield client


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    """Take a progress report."""


def image_in(result: types.CallToolResult) -> bytes:
    """Return the only image."""
    (image,) = (block for block in result.content if isinstance(block, types.ImageContent))
    return base64.b64decode(image.data)


def link_in(result: types.CallToolResult) -> types.ResourceLink:
    """Return the only link."""
    (link,) = (block for block in result.content if isinstance(block, types.ResourceLink))
    return link


@pytest.mark.promise("mcp:large:plain")
@ERAS
async def test_a_large_image_arrives_as_plain_json(server: HttpServer, mode: str) -> None:
    async with connected(server.url, mode=mode) as client:
        result = await client.call_tool("counter_large", {"image_bytes": MEGABYTES})
        assert image_in(result) == noise(MEGABYTES)


@pytest.mark.promise("mcp:large:linked")
@ERAS
async def test_a_large_image_after_progress_is_linked_and_read_in_ranges(
    server: HttpServer, mode: str
) -> None:
    arguments = {"image_bytes": MEGABYTES, "steps": 2}
    async with connected(server.url, mode=mode) as client:
        result = await client.call_tool("counter_large", arguments, progress_callback=ignore)
        link = link_in(result)
        assert (link.size, link.mime_type) == (MEGABYTES, "image/png")
        assert link.uri in str(result.content[-1]), "text names the link for models that see no links"
        assert result.structured_content == {"text": ""}
        whole = (await client.read_resource(link.uri)).contents[0]
        read = bytearray()
        while len(read) < MEGABYTES:
            uri = f"{link.uri}?offset={len(read)}&length=700000"
            part = (await client.read_resource(uri)).contents[0]
            assert isinstance(part, types.BlobResourceContents)
            assert (part.uri, part.mime_type) == (uri, "image/png")
            assert part.meta == {"agentflow/offset": len(read), "agentflow/size": MEGABYTES}
            read += base64.b64decode(part.blob)
        assert isinstance(whole, types.BlobResourceContents)
        assert bytes(read) == base64.b64decode(whole.blob) == noise(MEGABYTES)
        assert link.uri in [resource.uri for resource in (await client.list_resources()).resources]


@pytest.mark.promise("mcp:large:linked")
async def test_a_part_larger_than_the_store_is_kept_whole(table: ToolTable) -> None:
    for size in (40, 100, 50):
        link = table.sessions.keep("alice", "a.bin", "application/octet-stream", noise(size))
        kept = table.sessions.resource(link.uri, "alice")
        assert kept is not None
        assert kept.data == noise(size)
        assert table.sessions.resource(link.uri, "bob") is None
    assert sum(link.size for link in table.sessions.links("alice")) <= 150


@pytest.mark.promise("mcp:large:linked")
async def test_large_data_after_progress_is_kept_and_named_in_the_failure(server: HttpServer) -> None:
    arguments = {"text_length": MEGABYTES, "steps": 1}
    async with connected(server.url) as client:
        result = await client.call_tool("counter_large", arguments, progress_callback=ignore)
        link = link_in(result)
        assert result.meta is not None
        assert link.uri in result.meta[ERROR_KEY]["message"]
        kept = (await client.read_resource(link.uri)).contents[0]
        assert isinstance(kept, types.TextResourceContents)
        original = types.CallToolResult.model_validate_json(kept.text)
        assert original.structured_content == {"text": "x" * MEGABYTES}


@pytest.mark.promise("mcp:clients:profiles")
@ERAS
async def test_a_client_without_a_limit_gets_large_images_in_events(server: HttpServer, mode: str) -> None:
    arguments = {"image_bytes": MEGABYTES, "steps": 1}
    async with named(server.url, "claude-code", mode) as client:
        result = await client.call_tool("counter_large", arguments, progress_callback=ignore)
        assert image_in(result) == noise(MEGABYTES)


@pytest.mark.promise("mcp:large:plain")
@pytest.mark.parametrize("kept_plain", [False, True])
async def test_a_keep_alive_event_starts_a_stream_unless_the_answer_is_ready(kept_plain: bool) -> None:
    start: list[Message] = []
    body = bytearray()

    async def send(message: Message) -> None:
        start.extend([message] if message["type"] == "http.response.start" else [])
        body.extend(message.get("body", b""))

    async def application(scope: Scope, receive: Receive, take: Send) -> None:
        response: PostResponse = scope[POST_RESPONSE]
        if kept_plain:
            assert response.keep_plain()
        headers = [(b"content-type", b"text/event-stream"), (b"mcp-session-id", b"7")]
        await take({"type": "http.response.start", "status": 200, "headers": headers})
        answer = b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\r\n\r\n'
        for event in (b": ping\r\n\r\n", answer, b""):
            await take({"type": "http.response.body", "body": event, "more_body": bool(event)})
        assert response.keep_plain() is kept_plain

    async def receive() -> Message:
        return {"type": "http.request"}

    await PostResponse(send).run(application, {}, receive)
    headers: dict[bytes, bytes] = dict(start[0]["headers"])
    assert headers[b"mcp-session-id"] == b"7"
    if kept_plain:
        assert headers[b"content-type"] == b"application/json"
        assert body == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    else:
        assert headers[b"content-type"] == b"text/event-stream"
        assert body.startswith(b": ping")
        assert b'"result":{}' in body


@pytest.mark.promise("mcp:large:ranges")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("offset=0&length=3", "tä"),
        ("length=3", "tä"),
        ("offset=1&length=1", b"\xc3"),
        ("offset=3", "sk"),
        ("offset=9", ""),
        ("offset=0&length=0", ""),
    ],
)
def test_a_range_is_text_unless_it_splits_a_character(query: str, expected: str | bytes) -> None:
    resource = Resource("agentflow://session-1/1/a.txt", "a.txt", "text/plain", "täsk".encode())
    uri = f"{resource.uri}?{query}"
    contents = ResourceRange.parse(uri).read(uri, resource)
    if isinstance(contents, types.TextResourceContents):
        assert contents.text == expected
    else:
        assert base64.b64decode(contents.blob) == expected


@pytest.mark.promise("mcp:large:ranges")
@pytest.mark.parametrize(
    "query",
    ["", "offset=-1", "offset=x", "offset=1&offset=2", "size=3", "offset=", "length=1e3", "offset=1&x"],
)
async def test_an_invalid_range_is_refused_with_the_form_of_a_range(server: HttpServer, query: str) -> None:
    async with connected(server.url) as client:
        with pytest.raises(MCPError, match=r"use \?offset=BYTES&length=BYTES"):
            await client.read_resource(f"agentflow://session-0/1/x?{query}")


async def test_an_answer_without_accepted_json_is_refused_as_before(server: HttpServer) -> None:
    async with httpx2.AsyncClient() as http:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        refused = await http.post(server.url, json=hello, headers={"Accept": "text/event-stream"})
        assert refused.status_code == 406
