"""Settings of the document backend."""

from pathlib import Path
from typing import Any, Self, cast

from pydantic import AliasChoices, Field, SecretStr, model_validator

from agentflow.settings import Section

__all__ = ["DocumentSettings"]

MIB = 1024 * 1024


class DocumentSettings(Section):
    """Settings of the document backend."""

    folder: Path | None = None
    """A folder of documents, at any depth."""
    file: Path | None = Field(default=None, validation_alias=AliasChoices("file", "file_path"))
    """One document. `seed_path` names one or the other."""
    roots: tuple[Path, ...] = ()
    """Folders of this machine that a session's `folder` or `file` may lie in; without any a session can name none."""
    max_search_results: int = Field(default=10, ge=1, le=100)
    """How many places a search returns unless it is asked for another number."""
    max_image_num: int = Field(default=10, ge=0, le=50)
    """How many pictures a reading shows unless it is asked for another number."""
    max_text_token: int = Field(default=20_000, ge=100, le=200_000)
    """How much text a reading returns, in tokens (about four letters each), unless it is asked for another number."""
    max_rows: int = Field(default=200, ge=1, le=10_000)
    """How many rows of a table are returned."""
    file_bytes: int = Field(default=100 * MIB, gt=0)
    """The largest file that is read."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds that reading a whole document may take."""
    memory_bytes: int = Field(default=1024 * MIB, ge=128 * MIB)
    """Memory that reading one document may take."""
    at_once: int = Field(default=2, ge=1, le=64)
    """How many documents are read at once; as many stay open for pictures of their pages."""
    cache_dir: Path | None = None
    """Where what was read is kept, by the content of the files; by default in the user's cache."""
    cache_bytes: int = Field(default=512 * MIB, ge=0)
    """How much is kept there; what was not used for longest makes room."""
    ocr_program: str = "tesseract"
    """The program that reads the text in pictures, where it is installed."""
    ocr_languages: str = Field(default="eng", pattern=r"^[A-Za-z0-9_+/]+$")
    """The languages that it looks for, as in `eng+deu`."""
    vlm_model: str | None = None
    """A model that sees: it reads for the `goal` of a reading. Without one the passages are chosen by words."""
    vlm_api_key: SecretStr | None = None
    """Its key."""
    vlm_api_url: str | None = None
    """The address of its OpenAI-compatible endpoint, as in `http://127.0.0.1:8000/v1`."""
    vlm_max_tokens: int = Field(default=16_384, ge=1)
    """The longest answer it may give."""
    vlm_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one request to it."""
    vlm_retry_max_attempts: int = Field(default=10, ge=1, le=100)
    """How often it is asked until it answers."""

    @model_validator(mode="before")
    @classmethod
    def _know_a_seed(cls, given: object) -> object:
        """`seed_path` is a folder or a file."""
        if not isinstance(given, dict) or "seed_path" not in given:
            return cast("Any", given)
        settings = dict(cast("dict[str, Any]", given))
        seed = Path(settings.pop("seed_path"))
        return {**settings, "folder" if seed.is_dir() else "file": seed}

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.folder is not None and self.file is not None:
            raise ValueError("folder and file: give one of them")
        if (self.vlm_model is None) != (self.vlm_api_url is None):
            raise ValueError("vlm_model and vlm_api_url: give both or none")
        return self
