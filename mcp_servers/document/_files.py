"""The document files of a session."""

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.document._settings import DocumentSettings

SUFFIXES: Final = frozenset(
    (".bmp", ".docx", ".gif", ".htm", ".html", ".jpeg", ".jpg", ".markdown", ".md", ".pdf", ".png", ".pptx", ".text",
     ".tif", ".tiff", ".txt", ".webp", ".xhtml", ".xlsx")
)  # fmt: skip
MAX_FILES = 10_000


class DocumentFile(NamedTuple):
    """File of a document."""

    name: str
    """Name of the document: its path in the directory."""
    path: Path
    size: int
    stamp: tuple[int, ...]
    """Device, inode and times: unchanged as long as the content is."""


def _file(name: str, path: Path) -> DocumentFile:
    status = path.stat()
    return DocumentFile(
        name, path, status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    )


class DocumentSet:
    """The documents of a session: a file or a directory. All methods may block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> list[DocumentFile]:
        """Return all documents, sorted by name.

        :raises ToolFailure: `not_found`, if the directory or file no longer exists.
        """
        if not self._path.exists():
            raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {self._path.name!r} no longer exists.")
        if not self._path.is_dir():
            return [_file(self._path.name, self._path)]
        documents: list[DocumentFile] = []
        for folder, folders, names in os.walk(self._path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix.lower() in SUFFIXES and self._contains(path):
                    documents.append(_file(path.relative_to(self._path).as_posix(), path))
            if len(documents) >= MAX_FILES:
                break
        return sorted(documents[:MAX_FILES])

    def file(self, name: str | None) -> DocumentFile:
        """Return the document with this name; without a name, the only document.

        :raises ToolFailure: `bad_arguments`, if there are several; `not_found`, if there is none.
        """
        if name is not None and self._path.is_dir():
            path = self._path / name
            if path.suffix.lower() in SUFFIXES and self._contains(path):
                return _file(name, path)
        files = self.files()
        names = [file.name for file in files]
        if name is None:
            if len(files) == 1:
                return files[0]
            message = f"document: there are {len(files)} documents: name one. document_outline lists them."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS if files else ErrorKind.NOT_FOUND, message)
        matching = [file for file in files if name in (file.name, file.path.name)]
        if len(matching) != 1:
            message = f"document: no document {name!r}.{did_you_mean(name, names)}"
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return matching[0]

    def _contains(self, path: Path) -> bool:
        """Return whether a path is a regular file in the directory, after resolving symlinks, and not hidden."""
        try:
            real = path.resolve(strict=True)
            hidden = any(part.startswith(".") for part in path.relative_to(self._path).parts)
            return not hidden and real.is_relative_to(self._path) and stat.S_ISREG(real.stat().st_mode)
        except (OSError, ValueError, RuntimeError):
            return False


def check_paths(settings: DocumentSettings) -> None:
    """Reject a directory or file that does not exist.

    :raises ConfigurationError: naming it.
    """
    folder, file = settings.folder, settings.file
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"document: folder: there is no folder {str(folder)!r}")
    if file is not None and not file.is_file():
        raise ConfigurationError(f"document: file: there is no file {str(file)!r}")


def select_documents(settings: DocumentSettings, by_session: bool) -> DocumentSet | None:
    """Return the documents named by the settings; those that a session names must lie in one of the `roots`.

    :raises ToolFailure: `denied`, `not_found`.
    """
    path = settings.folder or settings.file
    if path is None:
        return None
    try:
        real = Path(os.path.realpath(path.expanduser()))
    except (RuntimeError, ValueError):
        # An unknown user's home, or a null byte.
        raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {str(path)!r} does not exist.") from None
    roots = [Path(os.path.realpath(root.expanduser())) for root in settings.roots]
    if by_session and not any(real.is_relative_to(root) for root in roots):
        # The message does not reveal whether the path exists.
        message = f"document: {str(path)!r} may not be named by a session: it is not inside any of the setting `roots`."
        raise ToolFailure(ErrorKind.DENIED, message)
    if not real.exists():
        raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {str(path)!r} does not exist.")
    return DocumentSet(real)
