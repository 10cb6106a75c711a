"""The data directory of a session, and the paths of its files in the session."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.core._running import check_settings, read_settings
from mcp_servers.data._settings import DataSettings
from runtimes import WORKSPACE

DATA: Final = "/data"
"""Mount point of the data in a session."""


def check_folder(settings: Mapping[str, object]) -> None:
    """Reject invalid settings of the server.

    :raises ConfigurationError: naming the setting.
    """
    check_settings(DataSettings, "data", settings)
    read = DataSettings.model_validate(settings)
    for folder in (*([read.folder] if read.folder else []), *read.roots):
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
    if given is not None:
        roots = [root.resolve() for root in (*own.roots, *([own.folder] if own.folder else []))]
        if not any(folder.is_relative_to(root) for root in roots):
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
        found = [self._of(name, base)]
        if base != WORKSPACE and not name.startswith("/"):
            found.append(f"{WORKSPACE}/{name}")
        return found

    def _of(self, name: str, base: str) -> str:
        if self.folder is not None and PurePosixPath(name).is_relative_to(self.folder):
            return str(DATA / PurePosixPath(name).relative_to(self.folder))
        return str(PurePosixPath(base) / name)
