"""The code backend: a Python session that keeps its state."""

from mcp_servers.code._backend import CodeBackend, CodeSettings
from mcp_servers.code._install import InstallSettings

__all__ = ["CodeBackend", "CodeSettings", "InstallSettings"]
