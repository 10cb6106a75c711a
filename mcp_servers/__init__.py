"""Tools that any MCP client can use: one server per backend, and one way to write a backend.

A backend is a `Backend` subclass with `@tool` methods. A `ToolTable` holds backends and their sessions. `Sandbox` calls
the table directly; the MCP servers (`serve_stdio`, `HttpServer`) call the same table. See docs/mcp-servers.md.
"""

from typing import TYPE_CHECKING

from mcp_servers.core import (
    BACKENDS,
    Backend,
    CallContext,
    ClientQuota,
    Image,
    Output,
    ResourceLink,
    RuntimeSettings,
    Session,
    TableLimits,
    TextContent,
    Tool,
    ToolError,
    ToolResult,
    ToolTable,
    load_backend,
    tool,
)
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from mcp_servers.serving import HttpOptions, HttpServer, serve_stdio

__all__ = [
    "BACKENDS",
    "Backend",
    "CallContext",
    "ClientQuota",
    "HttpOptions",
    "HttpServer",
    "Image",
    "Output",
    "ResourceLink",
    "RuntimeSettings",
    "Session",
    "TableLimits",
    "TextContent",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolTable",
    "load_backend",
    "serve_stdio",
    "tool",
]

# The servers load the MCP SDK, which callers of a tool table do not need.
__getattr__ = lazy_exports(__name__, {"mcp_servers.serving": ["HttpOptions", "HttpServer", "serve_stdio"]})
