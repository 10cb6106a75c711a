"""Settings of the data backend."""

from pathlib import Path

from pydantic import AliasChoices, Field

from mcp_servers.core._running import RunSettings

MIB = 1024 * 1024


class DataSettings(RunSettings):
    """Settings of the data backend."""

    folder: Path | None = Field(
        default=None, validation_alias=AliasChoices("folder", "seed_path", "data_dir")
    )
    """Data directory on this machine, mounted read-only as `/data` in the session; also called `seed_path`.
    By default the tools use the workspace."""
    roots: list[Path] = Field(default_factory=list[Path])
    """Directories in which a session's own `folder` must lie; only the server's settings can set them."""
    files: int = Field(default=100, ge=1, validation_alias=AliasChoices("files", "ds_max_csv"))
    """Most files that `data_inspect` describes; also called `ds_max_csv`."""
    summary_characters: int = Field(
        default=12_000, ge=100, validation_alias=AliasChoices("summary_characters", "ds_summary_max_chars")
    )
    """Longest text of `data_inspect`, in characters; also called `ds_summary_max_chars`."""
    rows: int = Field(default=50, ge=1)
    """Default number of rows of `data_read`."""
    result_bytes: int = Field(default=MIB // 4, ge=1_000)
    """Size limit of the rows of one result."""
    file_seconds: float = Field(default=20.0, gt=0)
    """CPU time limit for inspecting one file."""
    inspect_seconds: float = Field(default=120.0, gt=0)
    """Time limit of `data_inspect` and `data_read`, in seconds, including waiting."""
    memory_bytes: int = Field(default=512 * MIB, ge=64 * MIB)
    """Memory limit for inspecting one file."""
    images: int = Field(default=10, ge=0)
    """Most pictures that a result of `data_run` shows; others are kept as resources."""
