"""What the files tools return. Paths in the workspace are given relative to it, others are absolute."""

from typing import Literal

from mcp_servers.core._call import Output

__all__ = ["Edited", "Entry", "Found", "Info", "Listing", "Match", "Moved", "ReadFile", "Removed", "Written"]

Kind = Literal["file", "directory", "symlink", "other"]


class ReadFile(Output):
    """A file, or a part of it."""

    path: str
    """The file."""
    kind: Literal["text", "image", "base64"]
    """How it is given; an image is shown beside the data."""
    mime: str
    """Its type, as far as its beginning tells."""
    size: int
    """Bytes of the whole file."""
    content: str = ""
    """Text as it stands in the file, or base64; empty for an image."""
    first_line: int = 0
    """Number of the first line in `content`; 0 if there is none."""
    last_line: int = 0
    """Number of the last line in `content`."""
    total_lines: int | None = None
    """Lines of the whole file; null where they were not counted."""
    next_offset: int | None = None
    """The `offset` to go on with; null at the end of the file."""
    note: str = ""
    """What else there is to know."""


class Written(Output):
    """A file that was written."""

    path: str
    """The file."""
    size: int
    """Its bytes now."""
    created: bool
    """It was not there before."""


class Entry(Output):
    """One entry of a directory."""

    path: str
    """Where it is."""
    kind: Kind
    """What it is."""
    size: int
    """Bytes."""
    target: str | None = None
    """Where a symlink points."""


class Listing(Output):
    """A directory."""

    path: str
    """The directory."""
    entries: list[Entry]
    """By path."""
    total: int
    """How many entries there are; more than are given when there are too many."""


class Match(Output):
    """One place that was found."""

    path: str
    """The file."""
    line: int | None = None
    """The line's number; null where only names were searched."""
    text: str | None = None
    """The line; a very long one is cut."""


class Found(Output):
    """What a search found."""

    matches: list[Match]
    """By path and line."""
    files_searched: int
    """Files looked into, or names looked at."""
    truncated: bool
    """There is more: narrow the search or raise the limit."""


class Edited(Output):
    """A file that was edited."""

    path: str
    """The file."""
    replacements: int
    """How many places were changed."""
    diff: str
    """What changed, as a unified diff."""


class Moved(Output):
    """Something that was renamed or moved."""

    source: str
    """Where it was."""
    destination: str
    """Where it is now."""


class Removed(Output):
    """Something that was deleted."""

    path: str
    """Where it was."""


class Info(Output):
    """What is known of one path."""

    path: str
    """The path."""
    kind: Kind
    """What it is; a symlink is not followed."""
    size: int
    """Bytes."""
    mode: str
    """Permissions: `rw-r--r--`."""
    modified: str
    """When it was changed last, in UTC."""
    target: str | None = None
    """Where a symlink points."""
