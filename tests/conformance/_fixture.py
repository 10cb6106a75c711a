"""Fixture server of the conformance suite: `python -m tests.conformance._fixture` prints its URL.

Our whole serving code, from the socket to the tool table, with the tools, prompts and resources that the suite names.
Features outside the tool table come from a companion built with the SDK, behind the same endpoint.
"""

import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import HandlerEntry, RequestHandler, Server
from mcp.shared.exceptions import MCPError

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import Backend, CallContext, Image, TextContent, ToolTable, tool
from mcp_servers.serving._access import HttpOptions
from mcp_servers.serving._http import HttpServer
from mcp_servers.serving._protocol import RequestContext
from tests.conformance._companion import companion
from tests.mcp_servers._counter import PIXEL


class Diagnostics(Backend):
    """The suite's tools that a tool table supports."""

    name = "test"
    description = "Tools for the conformance suite."

    @tool(read_only=True)
    async def simple_text(self, context: CallContext) -> dict[str, object]:
        """Show a text."""
        context.show(TextContent("This is a simple text response for testing."))
        return {}

    @tool(read_only=True)
    async def image_content(self, context: CallContext) -> dict[str, object]:
        """Show an image."""
        context.show(Image(PIXEL))
        return {}

    @tool(read_only=True)
    async def error_handling(self) -> None:
        """Fail."""
        raise ToolFailure(ErrorKind.FAILED, "This tool intentionally returns an error for testing")

    @tool(read_only=True)
    async def tool_with_progress(self, context: CallContext) -> dict[str, object]:
        """Report progress."""
        for done in (0, 50, 100):
            context.progress(done, 100, f"Completed step {done} of 100")
        context.show(TextContent("done"))
        return {}


def extend(server: Server[Any]) -> None:
    """Add the companion's tools, prompts and resources to the endpoint's."""
    other: Server[Any] = getattr(companion(), "_lowlevel_server")  # noqa: B009  # there is no public name for it
    server.middleware.extend(other.middleware[1:])
    for method in (
        "completion/complete",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "subscriptions/listen",
    ):
        entry = _entry(other, method)
        server.add_request_handler(method, entry.params_type, entry.handler)
    _add_calls(server, other)
    _add_reads(server, other)

    async def acknowledge(context: RequestContext, params: types.RequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, acknowledge)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, acknowledge)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, acknowledge)


def _add_calls(server: Server[Any], other: Server[Any]) -> None:
    own_list, own_call = _entry(server, "tools/list").handler, _entry(server, "tools/call").handler
    other_list, other_call = _entry(other, "tools/list").handler, _entry(other, "tools/call").handler

    async def mine(context: RequestContext) -> list[types.Tool]:
        return await _tools(own_list, context)

    async def tools(context: RequestContext, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*await mine(context), *await _tools(other_list, context)])

    async def call(context: RequestContext, params: types.CallToolRequestParams) -> Any:  # noqa: ANN401  # a union
        ours = any(one.name == params.name for one in await mine(context))
        return await (own_call if ours else other_call)(context, params)

    server.add_request_handler("tools/list", types.PaginatedRequestParams, tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call)


async def _tools(handler: RequestHandler[Any, Any], context: RequestContext) -> list[types.Tool]:
    listed = await handler(context, None)
    assert isinstance(listed, types.ListToolsResult)
    return listed.tools


def _add_reads(server: Server[Any], other: Server[Any]) -> None:
    own_read, other_read = _entry(server, "resources/read").handler, _entry(other, "resources/read").handler

    async def read(context: RequestContext, params: types.ReadResourceRequestParams) -> Any:  # noqa: ANN401
        try:
            return await own_read(context, params)
        except MCPError:
            return await other_read(context, params)

    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read)


def _entry(server: Server[Any], method: str) -> HandlerEntry[Any]:
    entry = server.get_request_handler(method)
    assert entry is not None
    return entry


async def main() -> None:
    """Serve until killed."""
    async with ToolTable([Diagnostics()]) as table:
        server = HttpServer(table, HttpOptions(port=0), extend=extend)
        await server.serve(lambda: print(server.url, flush=True))  # noqa: T201  # the parent process reads this


if __name__ == "__main__":
    sys.exit(anyio.run(main))
