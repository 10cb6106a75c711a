"""The document files of a session."""

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.document._settings import DocumentSettings

__all__ = ["Choice", "File", "check_place", "choice_of"]

SUFFIXES: Final = frozenset(
    (".bmp", ".docx", ".gif", ".htm", ".html", ".jpeg", ".jpg", ".markdown", ".md", ".pdf", ".png", ".pptx", ".text",
     ".tif", ".tiff", ".txt", ".webp", ".xhtml", ".xlsx")
)  # fmt: skip
MOST_FILES = 10_000


class File(NamedTuple):
    """A document's file."""

    name: str
    """What it is called: its path in the folder."""
    path: Path
    """Where it is."""
    size: int
    """Its bytes."""
    stamp: tuple[int, ...]
    """As long as this is the same, so is its content."""


def _file(name: str, path: Path) -> File:
    status = path.stat()
    return File(
        name, path, status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    )


class Choice:
    """The documents of a session. All methods may block."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @property
    def is_folder(self) -> bool:
        """There may be several."""
        return self._place.is_dir()

    def files(self) -> list[File]:
        """All of them, by name.

        :raises ToolFailure: `not_found`, if they are no longer there.
        """
        if not self._place.exists():
            raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {self._place.name!r} is no longer there.")
        if not self.is_folder:
            return [_file(self._place.name, self._place)]
        found: list[File] = []
        for folder, folders, names in os.walk(self._place):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix.lower() in SUFFIXES and self._holds(path):
                    found.append(_file(path.relative_to(self._place).as_posix(), path))
            if len(found) >= MOST_FILES:
                break
        return sorted(found[:MOST_FILES])

    def file(self, name: str | None) -> File:
        """The document of that name; without one, the only one.

        :raises ToolFailure: `bad_arguments`, if there are several; `not_found`, if there is none.
        """
        if name is not None and self.is_folder:
            path = self._place / name
            if path.suffix.lower() in SUFFIXES and self._holds(path):
                return _file(name, path)
        files = self.files()
        names = [file.name for file in files]
        if name is None:
            if len(files) == 1:
                return files[0]
            message = f"document: there are {len(files)} documents: name one. document_outline lists them."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS if files else ErrorKind.NOT_FOUND, message)
        alike = [file for file in files if name in (file.name, file.path.name)]
        if len(alike) != 1:
            message = f"document: no document {name!r}.{did_you_mean(name, names)}"
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return alike[0]

    def _holds(self, path: Path) -> bool:
        """It is a file in the folder, also behind symlinks, and not hidden."""
        try:
            real = path.resolve(strict=True)
            hidden = any(part.startswith(".") for part in path.relative_to(self._place).parts)
            return not hidden and real.is_relative_to(self._place) and stat.S_ISREG(real.stat().st_mode)
        except (OSError, ValueError, RuntimeError):
            return False


def check_place(settings: DocumentSettings) -> None:
    """Refuse a folder or file that isn't there.

    :raises ConfigurationError: naming it.
    """
    for name, place in (("folder", settings.folder), ("file", settings.file)):
        if place is None:
            continue
        there = place.is_dir() if name == "folder" else place.is_file()
        if not there:
            raise ConfigurationError(f"document: {name}: there is no {name} {str(place)!r}")


def choice_of(settings: DocumentSettings, by_session: bool) -> Choice | None:
    """The documents that the settings name; what a session names must lie in one of the roots.

    :raises ToolFailure: `denied`, `not_found`.
    """
    place = settings.folder or settings.file
    if place is None:
        return None
    real = Path(os.path.realpath(place.expanduser()))
    roots = [Path(os.path.realpath(root.expanduser())) for root in settings.roots]
    if by_session and not any(real.is_relative_to(root) for root in roots):
        # The same whether it is there or not.
        message = (
            f"document: {str(place)!r} may not be named by a session: it lies in none of the setting `roots`."
        )
        raise ToolFailure(ErrorKind.DENIED, message)
    if not real.exists():
        raise ToolFailure(ErrorKind.NOT_FOUND, f"document: there is nothing at {str(place)!r}.")
    return Choice(real)
