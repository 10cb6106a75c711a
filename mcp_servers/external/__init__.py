"""External MCP servers, mounted as a backend beside ours."""

from mcp_servers.external._backend import ExternalBackend
from mcp_servers.external._settings import ExternalSettings, MountSettings

__all__ = ["ExternalBackend", "ExternalSettings", "MountSettings"]
