"""The MCP adapter through the official client, in both eras."""

from collections.abc import AsyncGenerator
from typing import Literal

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError

from agentflow.errors import ErrorKind
from mcp_servers import ToolTable
from mcp_servers.core import ERROR_KEY, TIMEOUT_KEY, DefaultSession
from mcp_servers.serving import McpAdapter
from tests.mcp_servers._counter import Counter

Era = Literal["auto", "legacy"]


@pytest.fixture(params=["auto", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    """The stateless protocol and the older handshake."""
    era: Era = request.param
    return era


@pytest.fixture
async def client(table: ToolTable, era: Era) -> AsyncGenerator[Client]:
    """A client whose connection has its own session."""
    default = DefaultSession(table.sessions, "local")
    door = McpAdapter(table, principal=lambda _: "local", default=default)
    async with Client(door.server(), mode=era) as client:
        yield client


def error_kind(result: types.CallToolResult) -> str:
    """The kind of a failed call."""
    assert result.is_error
    assert result.meta is not None
    return result.meta[ERROR_KEY]["kind"]


@pytest.mark.promise("mcp:protocol:tools")
async def test_every_tool_is_listed_with_schemas_and_all_four_annotations(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"counter_add", "session_start", "session_fork", "session_end", "session_list"} <= set(tools)
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema is not None
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(exclude={"title"})
        assert None not in hints.values(), tool.name


@pytest.mark.promise("mcp:protocol:call")
async def test_a_call_gives_structured_content_and_the_connection_has_its_own_session(client: Client) -> None:
    await client.call_tool("counter_add", {})
    result = await client.call_tool("counter_add", {})
    assert result.structured_content == {"count": 2}
    assert result.content == [types.TextContent(text='{"count": 2}')]


@pytest.mark.promise("mcp:protocol:errors")
@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("counter_ad", {}, ErrorKind.TOOL_NOT_FOUND),
        ("counter_add", {"amount": "many"}, ErrorKind.BAD_ARGUMENTS),
        ("counter_add", {"session": "session-0"}, ErrorKind.SESSION_NOT_FOUND),
        ("counter_fail", {}, ErrorKind.DENIED),
        ("counter_crash", {}, ErrorKind.FAILED),
    ],
)
async def test_a_failed_call_is_a_result_with_its_kind(
    client: Client, name: str, arguments: dict[str, object], kind: ErrorKind
) -> None:
    assert error_kind(await client.call_tool(name, arguments)) == kind


@pytest.mark.promise("mcp:protocol:progress")
async def test_progress_is_notified(client: Client) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    await client.call_tool("counter_steps", {"number": 3}, progress_callback=record)
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@pytest.mark.promise("mcp:protocol:cancelled")
async def test_a_cancelled_call_is_stopped_and_the_server_continues(client: Client, counter: Counter) -> None:
    async def call() -> None:
        await client.call_tool("counter_wait", {})

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await counter.entered.wait()
            group.cancel_scope.cancel()
        await counter.stopped.wait()
    assert (await client.call_tool("counter_add", {})).structured_content == {"count": 1}


async def test_a_request_may_set_its_call_s_time_limit(client: Client) -> None:
    with anyio.fail_after(60):
        result = await client.call_tool("counter_wait", {}, meta={TIMEOUT_KEY: 0.01})
    assert error_kind(result) == ErrorKind.TIMEOUT


@pytest.mark.promise("mcp:protocol:images")
async def test_an_image_is_image_content(client: Client) -> None:
    picture = (await client.call_tool("counter_picture", {})).content[0]
    assert isinstance(picture, types.ImageContent)
    assert picture.mime_type == "image/png"


@pytest.mark.promise("mcp:protocol:resources")
async def test_a_kept_resource_is_linked_listed_and_read(client: Client) -> None:
    result = await client.call_tool("counter_story", {})
    links = [block for block in result.content if isinstance(block, types.ResourceLink)]
    listed = await client.list_resources()
    assert [resource.uri for resource in listed.resources] == [link.uri for link in links]
    story, blob = [(await client.read_resource(link.uri)).contents[0] for link in links]
    assert isinstance(story, types.TextResourceContents)
    assert story.text == "once upon a time"
    assert isinstance(blob, types.BlobResourceContents)
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [
        "agentflow://{session}/{number}/{name}{?offset,length}"
    ]


async def test_an_unknown_resource_is_an_error_with_its_uri(client: Client, era: Era) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource("agentflow://session-0/1/x")
    assert caught.value.error.code == (types.INVALID_PARAMS if era == "auto" else -32002)
    assert caught.value.error.data == {"uri": "agentflow://session-0/1/x"}


async def test_a_wrong_cursor_is_refused(client: Client) -> None:
    with pytest.raises(MCPError, match="cursor"):
        await client.list_resources(cursor="x")


async def test_the_guide_describes_every_tool(client: Client) -> None:
    assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["guide"]
    message = (await client.get_prompt("guide")).messages[0]
    assert isinstance(message.content, types.TextContent)
    assert "counter:add — " in message.content.text
    with pytest.raises(MCPError, match="no prompt 'gide'"):
        await client.get_prompt("gide")


async def test_text_that_json_cannot_encode_is_replaced(client: Client) -> None:
    result = await client.call_tool("counter_broken_text", {})
    assert result.structured_content == {"text": "lone ?", "number": None, "list": ["?"]}


@pytest.mark.promise("mcp:protocol:one_backend")
async def test_an_endpoint_of_one_backend_lists_its_tools_and_the_session_tools(table: ToolTable) -> None:
    class Other(Counter):
        name = "other"

    table.add(Other())
    door = McpAdapter(table, principal=lambda _: "local", backend="other")
    async with Client(door.server()) as client:
        families = {tool.name.split("_")[0] for tool in (await client.list_tools()).tools}
        assert families == {"other", "session"}
        assert error_kind(await client.call_tool("counter_echo", {"text": "x"})) == ErrorKind.TOOL_NOT_FOUND
