"""The sql backend: databases to look into with SQL."""

from mcp_servers.sql._backend import SqlBackend
from mcp_servers.sql._settings import SqlSettings

__all__ = ["SqlBackend", "SqlSettings"]
