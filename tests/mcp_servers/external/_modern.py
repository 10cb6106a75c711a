"""A server of the stateless era, built with the SDK, that changes its tools on request. Run as a program."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("modern")


@server.tool()
async def first() -> str:
    """The tool that is removed."""
    return "first"


@server.tool()
async def change(context: Context) -> str:
    """Replace the first tool by another one."""
    server.remove_tool("first")
    server.add_tool(second)
    await context.notify_tools_changed()
    return "changed"


async def second() -> str:
    """The tool that is added."""
    return "second"


if __name__ == "__main__":
    server.run("stdio")
