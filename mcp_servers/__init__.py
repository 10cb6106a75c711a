"""Tools that any MCP client can use: one server per backend, one way to make a server.

A backend is a `Backend` subclass with `@tool` methods. A `ToolTable` holds backends and their sessions; the
in-process sandbox calls it directly, the MCP doors (stdio, streamable HTTP) call the same table.
"""

from mcp_servers._backend import Backend
from mcp_servers._context import CallContext, ProgressSink
from mcp_servers._limits import TableLimits
from mcp_servers._meta import ERROR_KEY, TIMEOUT_KEY
from mcp_servers._nearest import did_you_mean
from mcp_servers._registry import BACKENDS, load_backend
from mcp_servers._result import Image, Output, Part, ResourceLink, Text, ToolError, ToolResult
from mcp_servers._session import Session
from mcp_servers._sessions import DefaultSession, Sessions
from mcp_servers._shelf import Resource
from mcp_servers._table import LOCAL, ToolTable
from mcp_servers._tool import Hints, Tool, tool

__all__ = [
    "BACKENDS",
    "ERROR_KEY",
    "LOCAL",
    "TIMEOUT_KEY",
    "Backend",
    "CallContext",
    "DefaultSession",
    "Hints",
    "Image",
    "Output",
    "Part",
    "ProgressSink",
    "Resource",
    "ResourceLink",
    "Session",
    "Sessions",
    "TableLimits",
    "Text",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolTable",
    "did_you_mean",
    "load_backend",
    "tool",
]
