"""The tool table over MCP: standard input and output, streamable HTTP, several worker processes."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from mcp_servers.serving._access import HttpOptions, Origins, token_file, token_path
    from mcp_servers.serving._client import (
        ErrorResponseTransport,
        failure_of,
        list_tools,
        progress_relay,
        tool_result,
    )
    from mcp_servers.serving._http import HttpServer
    from mcp_servers.serving._protocol import AdapterOptions, McpAdapter
    from mcp_servers.serving._stdio import serve_stdio

__all__ = [
    "AdapterOptions",
    "ErrorResponseTransport",
    "HttpOptions",
    "HttpServer",
    "McpAdapter",
    "Origins",
    "failure_of",
    "list_tools",
    "progress_relay",
    "serve_stdio",
    "token_file",
    "token_path",
    "tool_result",
]

# Most of them load the MCP SDK.
__getattr__ = lazy_exports(
    __name__,
    {
        "._access": ["HttpOptions", "Origins", "token_file", "token_path"],
        "._client": ["ErrorResponseTransport", "failure_of", "list_tools", "progress_relay", "tool_result"],
        "._http": ["HttpServer"],
        "._protocol": ["AdapterOptions", "McpAdapter"],
        "._stdio": ["serve_stdio"],
    },
)
