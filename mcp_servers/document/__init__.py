"""Document backend: outlining, searching and reading documents. See docs/document.md."""

from mcp_servers.document._backend import DocumentBackend
from mcp_servers.document._settings import DocumentSettings

__all__ = ["DocumentBackend", "DocumentSettings"]
