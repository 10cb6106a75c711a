"""File content: reading as text, bytes and images; replacing text; diffs."""

import base64
import binascii
import difflib
import errno
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext, Image
from mcp_servers.files._paths import short
from mcp_servers.files._results import ReadFile
from runtimes import FileInfo, Instance

CHUNK = 1024 * 1024
COUNTED = 8 * CHUNK
MAX_SKIPPED = 1024 * CHUNK
"""Bytes before the first requested line that are searched for line ends."""
SNIFFED = 8192
"""Number of leading bytes from which a file's type is determined."""


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"PAR1", "application/vnd.apache.parquet"),
)


def mime_of(beginning: bytes) -> str:
    """Return a file's MIME type from its first bytes: `text/plain` unless it is binary."""
    for signature, mime in _SIGNATURES:
        if beginning.startswith(signature):
            return mime
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream" if b"\0" in beginning else "text/plain"


def bytes_of(content: str, encoding: Literal["text", "base64"]) -> bytes:
    """Decode content given as text or base64.

    :raises ToolFailure: `bad_arguments` if it is invalid.
    """
    try:
        return content.encode() if encoding == "text" else base64.b64decode(content, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"content is not valid {encoding}: {error}.") from None


async def existing(instance: Instance, path: str) -> FileInfo | None:
    """Return the file's information, or `None` if it does not exist."""
    try:
        return await instance.stat(path)
    except FileNotFoundError:
        return None


async def regular_file(instance: Instance, path: str) -> FileInfo:
    """Return the information of a regular file; symlinks are followed inside the session.

    :raises ToolFailure: `bad_arguments` for other files, because reading a pipe or device might never end.
    """
    info = await instance.stat(path)
    for _ in range(40):
        if info.kind != "symlink":
            break
        target = info.target or ""
        folder = info.path.rpartition("/")[0]
        info = await instance.stat(target if target.startswith("/") else f"{folder}/{target}")
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if info.kind == "directory":
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{path!r} is a directory: use files_list.")
    if info.kind != "file":
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{path!r} is not a regular file.")
    return info


async def read_whole(instance: Instance, path: str, size: int, most: int) -> bytes:
    """Read a whole file.

    :raises ToolFailure: `bad_arguments` if it is larger than `most`.
    """
    if size > most:
        message = f"{path!r} has {size} bytes; at most {most} are supported. Use bash_run or code_run."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return await instance.read(path, length=most)


def read_binary(data: bytes, path: str, mime: str, context: CallContext, *, as_base64: bool) -> ReadFile:
    """Return a file as base64, or show it as an image."""
    if as_base64:
        content = base64.b64encode(data).decode()
        return ReadFile(path=short(path), kind="base64", mime=mime, size=len(data), content=content)
    context.show(Image(data, mime))
    return ReadFile(path=short(path), kind="image", mime=mime, size=len(data))


async def read_text(
    instance: Instance, path: str, size: int, *, offset: int, limit: int, characters: int
) -> ReadFile:
    """Read lines of a file, up to the limits of one result."""
    lines = await read_lines(instance, path, size, first=offset, count=limit, characters=characters)
    notes: list[str] = []
    if lines.cut:
        notes.append(f"Line {lines.last} is too long and is cut.")
    if "\N{REPLACEMENT CHARACTER}" in lines.text:
        notes.append("Bytes that are no UTF-8 are shown as \N{REPLACEMENT CHARACTER}.")
    if lines.total is not None and offset > max(lines.total, 1):
        notes.append(f"The file has {lines.total} lines.")
    in_file = lines.last >= offset
    return ReadFile(
        path=short(path),
        kind="text",
        mime="text/plain",
        size=size,
        content=lines.text,
        first_line=offset if in_file else 0,
        last_line=lines.last if in_file else 0,
        total_lines=lines.total,
        next_offset=lines.last + 1 if lines.more else None,
        note=" ".join(notes),
    )


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of a file."""

    text: str
    """The lines, unchanged."""
    last: int
    """Number of the last line; less than the first requested line if there is none."""
    total: int | None
    """Number of lines of the whole file, if counted."""
    more: bool
    """More lines follow."""
    cut: bool
    """The last line is longer than the limit and truncated."""


async def read_lines(
    instance: Instance, path: str, size: int, *, first: int, count: int, characters: int
) -> Lines:
    """Read up to `count` lines from line `first`, within the character limit. Counts the lines of small files.

    Each chunk of the file is read once; only the bytes of the result are kept and decoded.

    :raises ToolFailure: `bad_arguments` if line `first` does not begin in the first GiB.
    """
    # A character has at most four bytes. One character more shows that the text is truncated.
    room = 4 * (characters + 1)
    kept, skip, ends, read, last = bytearray(), first - 1, 0, 0, b""
    total: int | None = None
    async with aclosing(_chunks(instance, path)) as chunks:
        async for last in chunks:
            read += len(last)
            line_ends = last.count(b"\n")
            ends += line_ends
            if skip > line_ends:
                skip -= line_ends
                if read > MAX_SKIPPED:
                    message = (
                        f"files_read: line {first} of {path!r} does not begin in the first GiB. Use bash_run."
                    )
                    raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
                continue
            start = _after(last, skip)
            skip = 0
            kept += last[start : start + room - len(kept)]
            if size > COUNTED and (len(kept) >= room or kept.count(b"\n") > count):
                break
        else:
            total = ends + bool(last and not last.endswith(b"\n"))
    return _fitting(kept.decode("utf-8", "replace"), first, count, characters, total)


def _after(chunk: bytes, ends: int) -> int:
    """Return the position after this number of line ends."""
    position = 0
    for _ in range(ends):
        position = chunk.index(b"\n", position) + 1
    return position


def _fitting(text: str, first: int, count: int, room: int, total: int | None) -> Lines:
    """Return the lines at the beginning of the text that are within the limits."""
    kept: list[str] = []
    for line in _LINE.findall(text):
        if len(kept) == count or (kept and len(line) > room):
            return Lines("".join(kept), first - 1 + len(kept), total, True, False)
        kept.append(line[:room])
        room -= len(kept[-1])
        if len(kept[-1]) < len(line):
            return Lines("".join(kept), first - 1 + len(kept), None, True, True)
    return Lines("".join(kept), first - 1 + len(kept), total, False, False)


async def _chunks(instance: Instance, path: str) -> AsyncGenerator[bytes]:
    offset = 0
    while chunk := await instance.read(path, offset=offset, length=CHUNK):
        yield chunk
        if len(chunk) < CHUNK:
            return
        offset += len(chunk)


CONTEXT = 3


LINES = 2_000


MAX_POSITIONS = 5


_LINE = re.compile(r"[^\n]*\n|[^\n]+")


_HUNK = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def replace_text(text: str, old: str, new: str, path: str, *, every: bool) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the number of replacements.

    :raises ToolFailure: `not_found` if `old` does not occur; `bad_arguments` if it occurs more than once without `every`,
        or if nothing would change.
    """
    if old == new:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "files_edit: old_text and new_text are the same.")
    count = text.count(old)
    if count == 0:
        hint = " It does with other line ends (\\r\\n)." if old.replace("\n", "\r\n") in text else ""
        message = (
            f"files_edit: old_text does not occur in {path!r}.{hint} Read the file and copy the text exactly."
        )
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    if count > 1 and not every:
        lines = ", ".join(str(text.count("\n", 0, position) + 1) for position in _positions(text, old))
        message = (
            f"files_edit: old_text occurs {count} times in {path!r} (lines {lines}{', …' if count > MAX_POSITIONS else ''}). "
            "Give more of the text around the place, or set replace_all."
        )
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return text.replace(old, new), count


def diff(before: str, after: str, path: str) -> str:
    """Return a unified diff, computed only between the first and the last change."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    skipped = max(start - CONTEXT, 0)
    tail = max(end - CONTEXT, 0)
    old, new = old[skipped : len(old) - tail], new[skipped : len(new) - tail]
    if max(len(old), len(new)) > LINES:
        return f"(a diff of {max(len(old), len(new))} lines, too long to show)"
    lines = difflib.unified_diff(old, new, path, path, n=CONTEXT)
    return "".join(_whole(_moved(line, skipped)) for line in lines)


def _positions(text: str, old: str) -> Iterator[int]:
    position = text.find(old)
    for _ in range(MAX_POSITIONS):
        if position < 0:
            return
        yield position
        position = text.find(old, position + len(old))


def _common(left: list[str], right: list[str]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(left), len(right)))


def _moved(line: str, by: int) -> str:
    def numbers(match: re.Match[str]) -> str:
        old, old_length, new, new_length = match.groups(default="")
        return f"@@ -{int(old) + by}{old_length} +{int(new) + by}{new_length} @@"

    return _HUNK.sub(numbers, line, count=1) if line.startswith("@@") else line


def _whole(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
