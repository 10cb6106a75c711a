"""Results of the files tools. Paths in the workspace are relative to it, others are absolute."""

from typing import Literal

from mcp_servers.core._call import Output

Kind = Literal["file", "directory", "symlink", "other"]


class ReadFile(Output):
    """A file, or a part of it."""

    path: str
    """Path of the file."""
    kind: Literal["text", "image", "base64"]
    """Form of the content; an image is shown beside the data."""
    mime: str
    """MIME type, from the first bytes."""
    size: int
    """Size of the whole file in bytes."""
    content: str = ""
    """Text as in the file, or base64; empty for an image."""
    first_line: int = 0
    """Number of the first line in `content`; 0 if there is none."""
    last_line: int = 0
    """Number of the last line in `content`."""
    total_lines: int | None = None
    """Number of lines of the whole file; null if not counted."""
    next_offset: int | None = None
    """The `offset` to continue with; null at the end of the file."""
    note: str = ""
    """Further information."""


class WrittenFile(Output):
    """A written file."""

    path: str
    """Path of the file."""
    size: int
    """New size in bytes."""
    created: bool
    """True if the file did not exist before."""


class DirectoryEntry(Output):
    """One entry of a directory."""

    path: str
    """Path of the entry."""
    kind: Kind
    """Kind of the entry."""
    size: int
    """Size in bytes."""
    target: str | None = None
    """Target of a symlink."""


class FolderListing(Output):
    """Contents of a directory."""

    path: str
    """Path of the directory."""
    entries: list[DirectoryEntry]
    """Entries in the order of their paths."""
    total: int
    """Number of entries in the directory, including those beyond the limit."""


class SearchMatch(Output):
    """One match."""

    path: str
    """Path of the file."""
    line: int | None = None
    """Line number; null if only names were searched."""
    text: str | None = None
    """The line; truncated if very long."""


class SearchMatches(Output):
    """Result of a search."""

    matches: list[SearchMatch]
    """Matches by path and line."""
    files_searched: int
    """Number of files or names searched."""
    truncated: bool
    """There are more matches: narrow the search or raise the limit."""


class EditedFile(Output):
    """An edited file."""

    path: str
    """Path of the file."""
    replacements: int
    """Number of replacements."""
    diff: str
    """The change as a unified diff."""


class MovedPath(Output):
    """A moved or renamed path."""

    source: str
    """Old path."""
    destination: str
    """New path."""


class RemovedPath(Output):
    """A deleted path."""

    path: str
    """The path."""


class PathInfo(Output):
    """Information about a path."""

    path: str
    """The path."""
    kind: Kind
    """Kind; a symlink is not followed."""
    size: int
    """Size in bytes."""
    mode: str
    """Permissions: `rw-r--r--`."""
    modified: str
    """Time of the last modification, in UTC."""
    target: str | None = None
    """Target of a symlink."""
