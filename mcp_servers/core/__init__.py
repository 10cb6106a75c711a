"""Tools, backends, sessions and the tool table that every entry point calls. Needs no MCP library.

`mcp_servers` re-exports the names that users of the package need; the rest is for the packages of this repository.
"""

from mcp_servers.core._backend import BACKENDS, Backend, check_known, load_backend
from mcp_servers.core._call import (
    ERROR_KEY,
    HANG_SECONDS,
    TIMEOUT_KEY,
    CallContext,
    Image,
    Output,
    Part,
    ProgressSink,
    ResourceLink,
    TextContent,
    ToolError,
    ToolResult,
    seconds_until_hung,
)
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._object_storage import BucketStorage, split_bucket_url
from mcp_servers.core._runtimes import (
    RUNTIMES,
    RuntimeChoice,
    RuntimeHost,
    RuntimeSettings,
    check_runtime,
    process_runtime,
    runtime_maker,
)
from mcp_servers.core._sessions import DefaultSession, Resource, Session, Sessions, TableLimits
from mcp_servers.core._shares import ClientQuota
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.core._tool import CARD_KEY, UNUSABLE_KEY, Hints, Tool, tool

__all__ = [
    "BACKENDS",
    "CARD_KEY",
    "ERROR_KEY",
    "HANG_SECONDS",
    "LOCAL",
    "RUNTIMES",
    "TIMEOUT_KEY",
    "UNUSABLE_KEY",
    "Backend",
    "BucketStorage",
    "CallContext",
    "ClientQuota",
    "DefaultSession",
    "Hints",
    "Image",
    "Output",
    "Part",
    "ProgressSink",
    "Resource",
    "ResourceLink",
    "RuntimeChoice",
    "RuntimeHost",
    "RuntimeSettings",
    "Session",
    "Sessions",
    "TableLimits",
    "TextContent",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolTable",
    "check_known",
    "check_runtime",
    "did_you_mean",
    "load_backend",
    "process_runtime",
    "runtime_maker",
    "seconds_until_hung",
    "split_bucket_url",
    "tool",
]
