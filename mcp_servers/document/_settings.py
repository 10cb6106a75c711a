"""Settings of the document backend."""

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator

from agentflow._typeguards import is_object
from agentflow.settings import Section

MIB = 1024 * 1024


class DocumentSettings(Section):
    """Settings of the document backend."""

    folder: Path | None = None
    """Directory of documents, searched recursively."""
    file: Path | None = Field(default=None, validation_alias=AliasChoices("file", "file_path"))
    """A single document. `seed_path` sets either `folder` or `file`."""
    roots: tuple[Path, ...] = ()
    """Directories in which a session's own `folder` or `file` must lie; by default a session can name none."""
    max_search_results: int = Field(default=10, ge=1, le=100)
    """Default number of hits of a search."""
    max_image_num: int = Field(default=10, ge=0, le=50)
    """Default number of pictures that `document_read` shows."""
    max_text_token: int = Field(default=20_000, ge=100, le=200_000)
    """Default amount of text that `document_read` returns, in tokens of about four characters."""
    max_rows: int = Field(default=200, ge=1, le=10_000)
    """Most rows returned of a table."""
    file_bytes: int = Field(default=100 * MIB, gt=0)
    """Largest file to read."""
    timeout: float = Field(default=120.0, gt=0)
    """Time limit for parsing a whole document, in seconds."""
    memory_bytes: int = Field(default=1024 * MIB, ge=128 * MIB)
    """Memory limit for parsing one document."""
    at_once: int = Field(default=2, ge=1, le=64)
    """Most documents parsed at once; as many stay open for images of their pages."""
    cache_dir: Path | None = None
    """Directory of the cache of parsed documents, keyed by file content; by default in the user's cache directory."""
    cache_bytes: int = Field(default=512 * MIB, ge=0)
    """Size limit of the cache; the least recently used entries are dropped."""
    ocr_program: str = "tesseract"
    """OCR program for text in pictures, used if installed."""
    ocr_languages: str = Field(default="eng", pattern=r"^[A-Za-z0-9_+/]+$")
    """Languages of the OCR program, as in `eng+deu`."""
    vlm_model: str | None = None
    """Vision model that answers the `goal` of `document_read`. Without one, passages are selected by their words."""
    vlm_api_key: SecretStr | None = None
    """API key of the vision model's endpoint."""
    vlm_api_url: str | None = None
    """OpenAI-compatible endpoint of the vision model, as in `http://127.0.0.1:8000/v1`."""
    vlm_max_tokens: int = Field(default=16_384, ge=1)
    """Longest answer of the vision model, in tokens."""
    vlm_timeout: float = Field(default=300.0, gt=0)
    """Time limit of one request to the vision model, in seconds."""
    vlm_retry_max_attempts: int = Field(default=10, ge=1, le=100)
    """Most attempts of a request to the vision model."""

    @model_validator(mode="before")
    @classmethod
    def _expand_seed_path(cls, values: object) -> object:
        """Replace `seed_path` by `folder` or `file`."""
        if not is_object(values) or "seed_path" not in values:
            return values
        settings = dict(values)
        seed = Path(settings.pop("seed_path"))
        return {**settings, "folder" if seed.is_dir() else "file": seed}

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.folder is not None and self.file is not None:
            raise ValueError("folder and file exclude each other: set one of them")
        if (self.vlm_model is None) != (self.vlm_api_url is None):
            raise ValueError("vlm_model and vlm_api_url: set both or neither")
        return self
