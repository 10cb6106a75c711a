"""The code backend: a Python session that keeps its state."""

from mcp_servers.code._backend import CodeBackend
from mcp_servers.code._settings import CodeSettings, InstallSettings

__all__ = ["CodeBackend", "CodeSettings", "InstallSettings"]
