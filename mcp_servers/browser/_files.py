"""Transfer of files between the browser and the session's workspace."""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from typing import TYPE_CHECKING

import anyio

from agentflow.errors import AgentFlowError, ErrorKind, ToolFailure
from mcp_servers.browser._schemas import MAX_TITLE_CHARS, MAX_URL_CHARS, DownloadInfo, SavedFile

if TYPE_CHECKING:
    from playwright.async_api import Download, FilePayload

    from mcp_servers.browser._state import BrowserState
    from mcp_servers.core._sessions import Session


DOWNLOADS_DIRECTORY = "downloads"
MAX_FILES = 20
PLAYWRIGHT_MAX_BYTES = 50 * 1024 * 1024
_UNSAFE = re.compile(r"[^\w.,()+@ -]+")


async def save(tool: str, session: Session, path: str, data: bytes) -> SavedFile:
    """Write a file into the workspace.

    :raises ToolFailure: if it cannot be written.
    """
    instance = await session.instance()
    try:
        await instance.write(path, data)
        info = await instance.stat(path)
    except OSError as error:
        raise _file_failure(tool, path, error) from None
    return SavedFile(path=info.path, size=len(data))


async def save_if_named(tool: str, session: Session, path: str | None, content: str | bytes) -> str | None:
    """Write a text or data into the workspace if `path` is given; return its path there."""
    if path is None:
        return None
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return (await save(tool, session, path, data)).path


async def _read_file(tool: str, session: Session, path: str, most: int) -> bytes:
    """Read a file of the workspace.

    :raises ToolFailure: if it does not exist or is too large.
    """
    instance = await session.instance()
    try:
        info = await instance.stat(path)
        if info.kind == "file" and info.size > most:
            message = f"{tool}: {path!r} has {info.size} bytes; the limit is {most}."
            raise ToolFailure(ErrorKind.FILE_TOO_LARGE, message)
        data = await instance.read(path, length=most + 1)
    except OSError as error:
        raise _file_failure(tool, path, error) from None
    if len(data) > most:
        raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"{tool}: {path!r} has more than {most} bytes.")
    return data


async def file_payloads(tool: str, session: Session, paths: list[str], most: int) -> list[FilePayload]:
    """Return files of the workspace as payloads with their content, because the browser cannot open them itself.

    :raises ToolFailure: if a file cannot be read, or they are too large.
    """
    if len(paths) > MAX_FILES:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: at most {MAX_FILES} files can be given at once.")
    left = min(most, PLAYWRIGHT_MAX_BYTES)
    payloads: list[FilePayload] = []
    for path in paths:
        data = await _read_file(tool, session, path, left)
        left -= len(data)
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        payloads.append({"name": os.path.basename(path), "mimeType": kind, "buffer": data})
    return payloads


async def collect_downloads(state: BrowserState, session: Session) -> None:
    """Copy finished downloads into the workspace; downloads that are still running are retried with the next result."""
    for tab in tuple(state.tabs):
        pending, tab.downloads = tab.downloads, []
        for index, download in enumerate(pending):
            with anyio.move_on_after(state.settings.settle_seconds) as scope:
                state.downloaded.append(await _collect(download, state, session))
            if scope.cancelled_caught:
                tab.downloads = pending[index:] + tab.downloads
                state.notes.append(f"The download of {download.suggested_filename!r} is still running.")
                return


async def _collect(download: Download, state: BrowserState, session: Session) -> DownloadInfo:
    # Addresses of downloads can hold the whole file.
    name, url = download.suggested_filename[:MAX_TITLE_CHARS], download.url[:MAX_URL_CHARS]
    # The page chooses the name.
    safe_name = _UNSAFE.sub("_", name).strip(" .")[-120:] or "file"
    try:
        data = await _bytes_of(download, state.settings.file_bytes)
        saved = await save("browser", session, f"{DOWNLOADS_DIRECTORY}/{safe_name}", data)
    except AgentFlowError as error:
        return DownloadInfo(name=name, url=url, path=None, size=None, error=str(error))
    return DownloadInfo(name=name, url=url, path=saved.path, size=saved.size, error=None)


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
    """Read a file written by a possibly compromised browser: only a regular file, no link, up to the size limit."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise ToolFailure(ErrorKind.DENIED, "the download is not a regular file.")
        if info.st_size > most:
            raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"the file has more than {most} bytes.")
        # Exactly this size: `read` allocates all that it is asked for.
        return file.read(info.st_size)


def _file_failure(tool: str, path: str, error: OSError) -> ToolFailure:
    kind = ErrorKind.BAD_ARGUMENTS
    if isinstance(error, FileNotFoundError):
        kind = ErrorKind.NOT_FOUND
    elif isinstance(error, PermissionError):
        kind = ErrorKind.DENIED
    return ToolFailure(kind, f"{tool}: {path!r}: {error.strerror or error}.")
