"""Transfer of files between the browser and the session's workspace."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import anyio

from agentflow.errors import AgentFlowError, ErrorKind, ToolFailure
from mcp_servers.browser._schemas import Downloaded, Saved

if TYPE_CHECKING:
    from playwright.async_api import Download, FilePayload

    from mcp_servers.browser._state import BrowserState
    from mcp_servers.core._session import Session

__all__ = ["collect_downloads", "payloads", "read_file", "save", "save_if_named"]

DOWNLOADS = "downloads"
MOST_FILES = 20
PLAYWRIGHTS_LIMIT = 50 * 1024 * 1024
_ODD = re.compile(r"[^\w.,()+@ -]+")


async def save(tool: str, session: Session, path: str, data: bytes) -> Saved:
    """Write a file into the workspace.

    :raises ToolFailure: if it can't be written there.
    """
    instance = await session.instance()
    try:
        await instance.write(path, data)
        info = await instance.stat(path)
    except OSError as error:
        raise _file_failure(tool, path, error) from None
    return Saved(path=info.path, size=len(data))


async def save_if_named(tool: str, session: Session, path: str | None, text: str) -> str | None:
    """Write a text into the workspace if a file is named; say where it lies."""
    if path is None:
        return None
    return (await save(tool, session, path, text.encode("utf-8", "replace"))).path


async def read_file(tool: str, session: Session, path: str, most: int) -> bytes:
    """A file of the workspace.

    :raises ToolFailure: if there is none, or it is too large.
    """
    instance = await session.instance()
    try:
        info = await instance.stat(path)
        if info.kind == "file" and info.size > most:
            message = f"{tool}: {path!r} has {info.size} bytes; at most {most} are taken."
            raise ToolFailure(ErrorKind.FILE_TOO_LARGE, message)
        data = await instance.read(path, length=most + 1)
    except OSError as error:
        raise _file_failure(tool, path, error) from None
    if len(data) > most:
        raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"{tool}: {path!r} has more than {most} bytes.")
    return data


async def payloads(tool: str, session: Session, paths: list[str], most: int) -> list[FilePayload]:
    """Files of the workspace as they are given to a page: their bytes, since the browser sees no file of anybody.

    :raises ToolFailure: if one can't be read, or they are too large.
    """
    if len(paths) > MOST_FILES:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: at most {MOST_FILES} files are taken at once.")
    left = min(most, PLAYWRIGHTS_LIMIT)
    found: list[FilePayload] = []
    for path in paths:
        data = await read_file(tool, session, path, left)
        left -= len(data)
        found.append({"name": os.path.basename(path), "mimeType": mime_of(path), "buffer": data})
    return found


def mime_of(path: str) -> str:
    """What a file's name says of its type."""
    import mimetypes

    return mimetypes.guess_type(path)[0] or "application/octet-stream"


async def collect_downloads(state: BrowserState, session: Session) -> None:
    """Put what was downloaded into the workspace; what is not there in time is asked for again later."""
    for tab in tuple(state.tabs):
        waiting, tab.downloads = tab.downloads, []
        for place, download in enumerate(waiting):
            with anyio.move_on_after(state.settings.settle_seconds) as scope:
                state.downloaded.append(await _collect(download, state, session))
            if scope.cancelled_caught:
                tab.downloads = waiting[place:] + tab.downloads
                state.notes.append(f"The download of {download.suggested_filename!r} goes on.")
                return


async def _collect(download: Download, state: BrowserState, session: Session) -> Downloaded:
    name, url = download.suggested_filename, download.url
    try:
        data = await _bytes_of(download, state.settings.file_bytes)
        saved = await save("browser", session, f"{DOWNLOADS}/{_plain(name)}", data)
    except AgentFlowError as error:
        return Downloaded(name=name, url=url, path=None, size=None, error=str(error))
    return Downloaded(name=name, url=url, path=saved.path, size=saved.size, error=None)


async def _bytes_of(download: Download, most: int) -> bytes:
    from playwright.async_api import Error

    try:
        path = await download.path()
        data = await anyio.to_thread.run_sync(_read_regular, str(path), most)
        await download.delete()
    except Error as error:
        reason = " ".join(error.message.split())[:200]
        raise ToolFailure(ErrorKind.FAILED, f"the download failed: {reason}") from None
    except OSError as error:
        raise ToolFailure(ErrorKind.FAILED, f"the download failed: {error.strerror}.") from None
    return data


def _read_regular(path: str, most: int) -> bytes:
    """A file that a browser wrote, who may have been taken over: no link, no device, and not more than allowed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise ToolFailure(ErrorKind.DENIED, "what was downloaded is no regular file.")
        data = file.read(most + 1)
    if len(data) > most:
        raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"the file has more than {most} bytes.")
    return data


def _plain(name: str) -> str:
    """A name that is one step of a path, whatever a page calls its file."""
    plain = _ODD.sub("_", name).strip(" .")[-120:]
    return plain or "file"


def _file_failure(tool: str, path: str, error: OSError) -> ToolFailure:
    kind = ErrorKind.BAD_ARGUMENTS
    if isinstance(error, FileNotFoundError):
        kind = ErrorKind.NOT_FOUND
    elif isinstance(error, PermissionError):
        kind = ErrorKind.DENIED
    return ToolFailure(kind, f"{tool}: {path!r}: {error.strerror or error}.")
