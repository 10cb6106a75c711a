"""Settings of the rag backend."""

from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, SecretStr, model_validator

from agentflow.settings import Section

__all__ = ["EmbeddingSettings", "Mode", "RagSettings"]

Mode: TypeAlias = Literal["lexical", "dense", "hybrid"]
"""How documents are found: by words, by vectors, by both."""


class EmbeddingSettings(Section):
    """An OpenAI-compatible endpoint that turns texts into vectors."""

    base_url: str
    """Its address, as in `http://127.0.0.1:8000/v1`."""
    model: str
    """The model to ask for."""
    api_key: SecretStr | None = None
    """The key, where it wants one."""
    batch: int = Field(default=64, ge=1, le=2048)
    """How many texts one request carries."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one request."""


class RagSettings(Section):
    """Settings of the rag backend. They are the server's own: all sessions search the same documents."""

    index_path: Path | None = None
    """A folder of documents, a JSONL file of them, or an index that was made of them; by default the bundled corpus."""
    corpus_path: Path | None = None
    """The documents, where `index_path` is the folder of their index."""
    index_dir: Path | None = None
    """Where the index is kept; by default beside the documents, or in the user's cache where that can't be written."""
    top_k: int = Field(default=5, ge=1, le=100)
    """How many hits a search returns unless it is asked for another number."""
    mode: Mode | None = None
    """`lexical`, `dense` or `hybrid`; by default `hybrid` with an embedding endpoint and `lexical` without."""
    embedding: EmbeddingSettings | None = None
    """The endpoint of dense and hybrid search."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.mode in ("dense", "hybrid") and self.embedding is None:
            raise ValueError(
                f"mode {self.mode} needs an endpoint: set embedding.base_url and embedding.model"
            )
        return self

    @property
    def way(self) -> Mode:
        """How documents are found, decided."""
        return self.mode or ("hybrid" if self.embedding else "lexical")
