"""The rag backend: searching a collection of documents."""

from mcp_servers.rag._backend import RagBackend
from mcp_servers.rag._settings import EmbeddingSettings, RagSettings

__all__ = ["EmbeddingSettings", "RagBackend", "RagSettings"]
