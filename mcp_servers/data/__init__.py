"""Data backend: inspection of data files, and Python on them. See docs/data.md."""

from mcp_servers.data._backend import DataBackend, DataSettings

__all__ = ["DataBackend", "DataSettings"]
