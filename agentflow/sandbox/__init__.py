"""Sandboxes: tools that share a workspace, keep their state, and can be forked.

`async with Sandbox() as sandbox` hosts the tools in this process, `Sandbox("http://host:18890")` uses a server; the
same calls give the same results. `register_api_tool` makes a function a tool; a `Backend` subclass makes a
stateful one. `SyncSandbox` is the variant without `await`.
"""

from agentflow.sandbox._api_tools import register_api_tool
from agentflow.sandbox._blocking import SyncSandbox
from agentflow.sandbox._sandbox import Call, Sandbox, SessionInfo
from agentflow.sandbox._settings import SandboxSettings, check_backends, import_tools, split_settings
from agentflow.sandbox._tool_host import argument_of, backend_of
from mcp_servers import Backend, Image, ResourceLink, Session, TextContent, Tool, ToolError, ToolResult, tool

__all__ = [
    "Backend",
    "Call",
    "Image",
    "ResourceLink",
    "Sandbox",
    "SandboxSettings",
    "Session",
    "SessionInfo",
    "SyncSandbox",
    "TextContent",
    "Tool",
    "ToolError",
    "ToolResult",
    "argument_of",
    "backend_of",
    "check_backends",
    "import_tools",
    "register_api_tool",
    "split_settings",
    "tool",
]
