"""A server of the stateless era, by the SDK, that changes its tools when it is told to. Run as a program."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("modern")


@server.tool()
async def first() -> str:
    """The tool that goes."""
    return "first"


@server.tool()
async def change(context: Context) -> str:
    """Take the first tool away, and bring another one."""
    server.remove_tool("first")
    server.add_tool(second)
    await context.notify_tools_changed()
    return "changed"


async def second() -> str:
    """The tool that comes."""
    return "second"


if __name__ == "__main__":
    server.run("stdio")
