"""The bash backend: a shell that keeps its state."""

from mcp_servers.bash._backend import BashBackend, BashSettings

__all__ = ["BashBackend", "BashSettings"]
