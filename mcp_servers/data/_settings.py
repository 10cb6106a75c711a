"""Settings of the data backend, and the data directory of a session."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import AliasChoices, Field

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.core._running import RunSettings, check_settings, read_settings
from runtimes import WORKSPACE

DATA: Final = "/data"
"""Mount point of the data in a session."""
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

    @property
    def readable(self) -> list[Path]:
        """Directories that sessions may read."""
        return [*([self.folder] if self.folder else []), *self.roots]


def check_folder(settings: Mapping[str, object]) -> None:
    """Reject invalid settings of the server.

    :raises ConfigurationError: naming the setting.
    """
    for folder in check_settings(DataSettings, "data", settings).readable:
        if not folder.is_dir():
            raise ConfigurationError(f"data: there is no folder {folder}: set `folder` to one that is there")


def folder_for(settings: Mapping[str, object], asked: Mapping[str, object]) -> Path | None:
    """Return the data directory of a session, from the server's settings and its own.

    :raises ToolFailure: `denied`, if it is not inside one of the server's `roots`; `not_found`.
    """
    given = read_settings(DataSettings, "data", asked).folder
    own = read_settings(DataSettings, "data", settings)
    folder = (given or own.folder or Path()).resolve()
    if given is None and own.folder is None:
        return None
    if given is not None and not any(folder.is_relative_to(root.resolve()) for root in own.readable):
        message = f"data: no session may see {given}: the operator can allow it with `roots`."
        raise ToolFailure(ErrorKind.DENIED, message)
    if not folder.is_dir():
        raise ToolFailure(ErrorKind.NOT_FOUND, f"data: there is no folder {given or own.folder}.")
    return folder


class DataDirectory:
    """Location of a session's data: `/data`, or the workspace."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        """Directory on this machine; `None` for the workspace."""

    @property
    def root(self) -> str:
        """Path of the data in the session."""
        return DATA if self.folder else WORKSPACE

    def inside(self, name: str | None, folder: str | None) -> list[str]:
        """Return the paths in the session that a name may refer to, the most likely first.

        :param folder: a directory in the data: a path in the session, on this machine or relative to the data.
        """
        base = self._of(folder, self.root) if folder else self.root
        if not name:
            return [base]
        paths = [self._of(name, base)]
        if base != WORKSPACE and not name.startswith("/"):
            paths.append(f"{WORKSPACE}/{name}")
        return paths

    def _of(self, name: str, base: str) -> str:
        if self.folder is not None and PurePosixPath(name).is_relative_to(self.folder):
            return str(DATA / PurePosixPath(name).relative_to(self.folder))
        return str(PurePosixPath(base) / name)
