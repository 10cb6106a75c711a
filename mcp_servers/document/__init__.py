"""The document backend: documents outlined, searched, read and shown."""

from mcp_servers.document._backend import DocumentBackend
from mcp_servers.document._settings import DocumentSettings

__all__ = ["DocumentBackend", "DocumentSettings"]
