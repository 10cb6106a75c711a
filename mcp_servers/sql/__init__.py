"""SQL backend: queries on SQLite, DuckDB and Postgres. See docs/sql.md."""

from mcp_servers.sql._backend import SqlBackend
from mcp_servers.sql._settings import SqlSettings

__all__ = ["SqlBackend", "SqlSettings"]
