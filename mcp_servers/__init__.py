"""Tools that any MCP client can use: one server per backend, one way to make a server.

A backend is a `Backend` subclass with `@tool` methods. A `ToolTable` holds backends and their sessions; the
in-process sandbox calls it directly, the MCP doors (`serve_stdio`, `HttpServer`) call the same table.
"""

from typing import TYPE_CHECKING

from mcp_servers.core._backend import Backend
from mcp_servers.core._context import CallContext, ProgressSink
from mcp_servers.core._limits import TableLimits
from mcp_servers.core._meta import CARD_KEY, ERROR_KEY, TIMEOUT_KEY, UNUSABLE_KEY
from mcp_servers.core._nearest import did_you_mean
from mcp_servers.core._registry import BACKENDS, load_backend
from mcp_servers.core._resource_store import Resource
from mcp_servers.core._result import Image, Output, Part, ResourceLink, Text, ToolError, ToolResult
from mcp_servers.core._runtime_choice import (
    RUNTIMES,
    RuntimeChoice,
    RuntimeSettings,
    check_runtime,
    runtime_maker,
)
from mcp_servers.core._session import Session
from mcp_servers.core._sessions import DefaultSession, Sessions
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.core._tool import Hints, Tool, tool
from mcp_servers.serving._access import is_loopback
from mcp_servers.serving._token_file import token_path
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from mcp_servers.serving._http import HttpServer
    from mcp_servers.serving._http_options import HttpOptions
    from mcp_servers.serving._protocol import McpDoor
    from mcp_servers.serving._stdio import serve_stdio

__all__ = [
    "BACKENDS",
    "CARD_KEY",
    "ERROR_KEY",
    "LOCAL",
    "RUNTIMES",
    "TIMEOUT_KEY",
    "UNUSABLE_KEY",
    "Backend",
    "CallContext",
    "DefaultSession",
    "Hints",
    "HttpOptions",
    "HttpServer",
    "Image",
    "McpDoor",
    "Output",
    "Part",
    "ProgressSink",
    "Resource",
    "ResourceLink",
    "RuntimeChoice",
    "RuntimeSettings",
    "Session",
    "Sessions",
    "TableLimits",
    "Text",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolTable",
    "check_runtime",
    "did_you_mean",
    "is_loopback",
    "load_backend",
    "runtime_maker",
    "serve_stdio",
    "token_path",
    "tool",
]


# The MCP entry points load the SDK; callers of a tool table do not need it.
__getattr__ = lazy_exports(
    __name__,
    {
        ".serving._http": ["HttpServer"],
        ".serving._http_options": ["HttpOptions"],
        ".serving._protocol": ["McpDoor"],
        ".serving._stdio": ["serve_stdio"],
    },
)
