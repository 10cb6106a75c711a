"""A conversation with an external server, by the official SDK."""

import mcp_types as types
from mcp import ClientSession
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_servers.external._transport import Streams

__all__ = ["Asking", "agree", "announces_changes", "every_tool"]

MOST_TOOLS = 2_000


class Asking(ClientSession):
    """The client's half of a connection."""

    def __init__(self, streams: Streams, handler: MessageHandlerFnT) -> None:
        incoming, outgoing = streams
        super().__init__(
            incoming,
            outgoing,
            message_handler=handler,
            client_info=types.Implementation(name="agentflow", version="1"),
        )

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Not here: the SDK would trust the schema not to cost for ever. See `_checking`."""


async def agree(asking: ClientSession) -> None:
    """Find out which era of the protocol the server speaks, and greet it."""
    try:
        await asking.discover()
    except (MCPError, ValidationError, RuntimeError) as error:
        if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
            raise
        await asking.initialize()


def announces_changes(asking: ClientSession) -> bool:
    """The server tells when its tools change, but only whoever asks it to."""
    capabilities = asking.server_capabilities
    tools = None if capabilities is None else capabilities.tools
    return asking.protocol_version in MODERN_PROTOCOL_VERSIONS and bool(tools and tools.list_changed)


async def every_tool(asking: ClientSession) -> list[types.Tool]:
    """All tools of a server, of a bounded number."""
    capabilities = asking.server_capabilities
    if capabilities is not None and capabilities.tools is None:
        return []
    page = await asking.list_tools()
    tools = list(page.tools)
    while page.next_cursor and len(tools) < MOST_TOOLS:
        page = await asking.list_tools(params=types.PaginatedRequestParams(cursor=page.next_cursor))
        if not page.tools:
            break
        tools.extend(page.tools)
    return tools[:MOST_TOOLS]
