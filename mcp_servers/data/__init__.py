"""The data backend: a folder of data files to look into and to compute with."""

from mcp_servers.data._backend import DataBackend
from mcp_servers.data._settings import DataSettings

__all__ = ["DataBackend", "DataSettings"]
