"""Settings of the data backend."""

from pathlib import Path

from pydantic import AliasChoices, Field

from mcp_servers.core._running import RunSettings

__all__ = ["DataSettings"]

MIB = 1024 * 1024


class DataSettings(RunSettings):
    """Settings of the data backend."""

    folder: Path | None = Field(
        default=None, validation_alias=AliasChoices("folder", "seed_path", "data_dir")
    )
    """The data: a folder of this machine, shown in the session as `/data`, to be read only; also called `seed_path`.
    Without it the tools look into the workspace."""
    roots: list[Path] = Field(default_factory=list[Path])
    """Folders below which a session may choose a `folder` of its own; only the server's own settings can give them."""
    files: int = Field(default=100, ge=1, validation_alias=AliasChoices("files", "ds_max_csv"))
    """How many files `data_inspect` looks into; also called `ds_max_csv`."""
    summary_characters: int = Field(
        default=12_000, ge=100, validation_alias=AliasChoices("summary_characters", "ds_summary_max_chars")
    )
    """How long the text may be that `data_inspect` shows; also called `ds_summary_max_chars`."""
    rows: int = Field(default=50, ge=1)
    """How many rows `data_read` returns unless it is asked for another number."""
    result_bytes: int = Field(default=MIB // 4, ge=1_000)
    """The size of the rows of one result."""
    file_seconds: float = Field(default=20.0, gt=0)
    """Time of work for looking into one file."""
    inspect_seconds: float = Field(default=120.0, gt=0)
    """Seconds for one `data_inspect` or `data_read`, waiting included."""
    memory_bytes: int = Field(default=512 * MIB, ge=64 * MIB)
    """Memory for looking into one file."""
    images: int = Field(default=10, ge=0)
    """How many pictures a result of `data_run` shows; the others are kept as resources."""
