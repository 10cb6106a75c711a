"""File content as text, bytes and images."""

import base64
import binascii
import errno
import os
from typing import Literal

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext, Image
from mcp_servers.files._paths import short
from mcp_servers.files._reading import read_lines
from mcp_servers.files._results import ReadFile
from runtimes import FileInfo, Instance


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
    found = lines.last >= offset
    return ReadFile(
        path=short(path),
        kind="text",
        mime="text/plain",
        size=size,
        content=lines.text,
        first_line=offset if found else 0,
        last_line=lines.last if found else 0,
        total_lines=lines.total,
        next_offset=lines.last + 1 if lines.more else None,
        note=" ".join(notes),
    )
