"""Settings of the rag backend."""

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from agentflow.settings import Section

Mode: TypeAlias = Literal["lexical", "dense", "hybrid"]
"""Search mode: by words, by vectors, or both."""
DEFAULT_MODEL = "minilm"
"""Known model that embeds texts if no other is named. See docs/known-models.md."""


def _unless_empty(path: object) -> object:
    """Return `None` for an empty text, which an unset variable leaves."""
    return None if path == "" else path


class EmbeddingSettings(Section):
    """Embedding model: at an OpenAI-compatible endpoint, or in the server's process."""

    base_url: str | None = None
    """Address of an endpoint, as in `http://127.0.0.1:8000/v1`; without, the model runs in this process, on the CPU."""
    model: str | None = None
    """Model of the endpoint; without one, a folder in Hugging Face format, by default that of `agentflow models fetch minilm`."""
    api_key: SecretStr | None = None
    """API key of the endpoint, if required."""
    batch: int = Field(default=64, ge=1, le=2048)
    """Texts per request."""
    timeout: float = Field(default=60.0, gt=0)
    """Time limit of one request, in seconds."""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.base_url and not self.model:
            raise ValueError("an endpoint requires the name of its model: set embedding.model")
        return self

    @property
    def model_name(self) -> str:
        """Name of the model, under which vectors are stored."""
        return self.model or DEFAULT_MODEL


class RagSettings(Section):
    """Settings of the rag backend. A client cannot override them: all sessions search the same documents."""

    index_path: Annotated[Path | None, BeforeValidator(_unless_empty)] = None
    """Directory or JSONL file of documents, or an existing index of them; by default the bundled corpus."""
    corpus_path: Path | None = None
    """The documents, if `index_path` is the directory of their index."""
    index_dir: Path | None = None
    """Directory of the index; by default next to the documents, or in the user's cache directory if that is read-only."""
    top_k: int = Field(default=5, ge=1, le=100)
    """Default number of hits of a search."""
    mode: Mode | None = None
    """`lexical`, `dense` or `hybrid`; by default `hybrid` with `embedding` and `lexical` without."""
    embedding: EmbeddingSettings | None = None
    """Embedding model for dense and hybrid search; `mode: dense` or `mode: hybrid` without it uses the default model."""

    @model_validator(mode="before")
    @classmethod
    def _use_default_model(cls, data: dict[str, object]) -> dict[str, object]:
        if data.get("mode") in ("dense", "hybrid") and data.get("embedding") is None:
            return {**data, "embedding": {}}
        return data

    @property
    def effective_mode(self) -> Mode:
        """The search mode in effect."""
        return self.mode or ("hybrid" if self.embedding else "lexical")
