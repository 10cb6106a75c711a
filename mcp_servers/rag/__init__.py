"""RAG backend: search in a collection of documents. See docs/backends.md."""

from mcp_servers.rag._backend import RagBackend
from mcp_servers.rag._documents import CorpusDocument, read_documents
from mcp_servers.rag._settings import EmbeddingSettings, RagSettings

__all__ = ["CorpusDocument", "EmbeddingSettings", "RagBackend", "RagSettings", "read_documents"]
