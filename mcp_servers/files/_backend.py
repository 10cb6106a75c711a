"""The tools of the files backend."""

import inspect
import json
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext
from mcp_servers.core._failures import one_line
from mcp_servers.core._running import check_outcome, check_settings, read_settings
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from mcp_servers.files import _search_program
from mcp_servers.files._content import (
    SNIFFED,
    bytes_of,
    diff,
    existing,
    mime_of,
    read_binary,
    read_text,
    read_whole,
    regular_file,
    replace_text,
)
from mcp_servers.files._paths import checked, file_failures, short
from mcp_servers.files._results import (
    DirectoryEntry,
    EditedFile,
    FolderListing,
    MovedPath,
    PathInfo,
    ReadFile,
    RemovedPath,
    SearchMatches,
    WrittenFile,
)
from runtimes import MIB, WORKSPACE, FrameError, Instance, decode_untrusted

FilePath = Annotated[str, Field(description="Path of the file, relative to the workspace or absolute.")]


class FilesSettings(Section):
    """Settings of the files backend."""

    characters: int = Field(default=60_000, ge=100)
    """Maximum characters that one `files_read` returns."""
    whole_bytes: int = Field(default=8 * MIB, ge=1)
    """Maximum size of a file to show as an image, return as base64, or edit."""
    data_dir: Path | None = None
    """Directory that every session sees, read-only and under its own path, so that seeds can name files by it."""

    @property
    def mounts(self) -> dict[str, str]:
        """Mount of the data directory.

        :raises ConfigurationError: if it does not exist.
        """
        if self.data_dir is None:
            return {}
        path = self.data_dir.expanduser().absolute()
        if not path.is_dir():
            raise ConfigurationError(f"files: data_dir: {path} is not a directory")
        return {str(path): str(path)}


class FilesBackend(Backend):
    """The session's files, shared with its shell and its code."""

    name = "files"
    description = "Read, write, search and edit the files of the session's workspace."
    settings_model = FilesSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset({"data_dir"})

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings and a missing data directory."""
        _ = check_settings(FilesSettings, self.name, settings).mounts

    def mounts(
        self, settings: Mapping[str, object], session_settings: Mapping[str, object]
    ) -> Mapping[str, str]:
        """Return the mount of the data directory."""
        return check_settings(FilesSettings, self.name, settings).mounts

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings."""
        session.put(read_settings(FilesSettings, self.name, settings))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the settings; the files were forked with the instance."""
        forked.put(session.get(FilesSettings))

    @tool(title="Read a file", read_only=True)
    async def read(
        self,
        session: Session,
        context: CallContext,
        path: FilePath,
        offset: Annotated[int, Field(ge=1, description="First line to read, counting from 1.")] = 1,
        limit: Annotated[int, Field(ge=1, le=100_000, description="How many lines to read.")] = 2_000,
        encoding: Annotated[
            Literal["text", "base64"], Field(description="'base64' returns the bytes of any file.")
        ] = "text",
    ) -> ReadFile:
        """Read a text file, or some of its lines; show an image.

        Use it to look into files. A binary file other than an image is refused unless encoding is base64.
        """
        settings = session.get(FilesSettings)
        instance = await session.instance()
        with file_failures("files_read", path):
            info = await regular_file(instance, checked(path))
            beginning = await instance.read(path, length=SNIFFED)
            mime = mime_of(beginning)
            if encoding == "base64" or mime.startswith("image/"):
                data = await read_whole(instance, path, info.size, settings.whole_bytes)
                return read_binary(data, path, mime, context, as_base64=encoding == "base64")
            if mime != "text/plain":
                message = (
                    f"files_read: {path!r} is binary ({mime}, {info.size} bytes). "
                    "encoding='base64' returns its bytes; code_run can open it with a library."
                )
                raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
            return await read_text(
                instance, path, info.size, offset=offset, limit=limit, characters=settings.characters
            )

    @tool(title="Write a file")
    async def write(
        self,
        session: Session,
        path: FilePath,
        content: Annotated[str, Field(description="The content to write.")],
        encoding: Annotated[
            Literal["text", "base64"], Field(description="'base64': content is the bytes in base64.")
        ] = "text",
        append: Annotated[bool, Field(description="Add to the end instead of replacing the file.")] = False,
        executable: Annotated[bool, Field(description="Make it a program.")] = False,
    ) -> WrittenFile:
        """Write a file, replacing an existing one; missing directories are created.

        Use it to create files or to replace them whole; files_edit changes a part.
        """
        data = bytes_of(content, encoding)
        instance = await session.instance()
        with file_failures("files_write", path):
            before = await existing(instance, checked(path))
            await instance.write(path, data, append=append, executable=executable)
            return WrittenFile(
                path=short(path), size=(await instance.stat(path)).size, created=before is None
            )

    @tool(title="List a directory", read_only=True)
    async def list(
        self,
        session: Session,
        path: Annotated[str, Field(description="The directory.")] = ".",
        recursive: Annotated[bool, Field(description="Also list subdirectories.")] = False,
        limit: Annotated[int, Field(ge=1, le=10_000, description="How many entries to return.")] = 1_000,
    ) -> FolderListing:
        """List the entries of a directory with their kinds and sizes.

        Use it to explore the workspace; files_search finds files by name or content.
        """
        instance = await session.instance()
        with file_failures("files_list", path):
            paths = await instance.list(checked(path), recursive=recursive)
        entries = [
            DirectoryEntry(path=short(info.path), kind=info.kind, size=info.size, target=info.target)
            for info in paths[:limit]
        ]
        return FolderListing(path=short(path), entries=entries, total=len(paths))

    @tool(title="Search files", read_only=True)
    async def search(
        self,
        session: Session,
        context: CallContext,
        pattern: Annotated[
            str | None,
            Field(
                description="Regular expression (Python's) that a line must contain; leave out for names only."
            ),
        ] = None,
        glob: Annotated[
            str | None,
            Field(
                description="Only files of this name: '*.py' at any depth, 'src/**/*.py' from the path on."
            ),
        ] = None,
        path: Annotated[str, Field(description="The directory or file to search.")] = ".",
        ignore_case: Annotated[bool, Field(description="Ignore case.")] = False,
        limit: Annotated[int, Field(ge=1, le=5_000, description="How many matches to return.")] = 200,
    ) -> SearchMatches:
        """Find lines by a regular expression, or files by name, below a directory.

        Use it before reading: with `pattern` for contents, with `glob` for names, with both for contents of some
        files. Binary files are skipped.
        """
        if not pattern and not glob:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "files_search: give a pattern, a glob, or both.")
        request: dict[str, object] = {
            "path": f"{WORKSPACE}/{checked(path)}" if not path.startswith("/") else path,
            "pattern": pattern,
            "glob": glob,
            "ignore_case": ignore_case,
            "limit": limit,
        }
        instance = await session.instance()
        with file_failures("files_search", path):
            return await find(instance, request, context.run_seconds())

    @tool(title="Edit a file")
    async def edit(
        self,
        session: Session,
        path: FilePath,
        old_text: Annotated[
            str, Field(min_length=1, description="The text to replace, exactly as in the file.")
        ],
        new_text: Annotated[str, Field(description="The replacement.")],
        replace_all: Annotated[bool, Field(description="Replace every occurrence.")] = False,
    ) -> EditedFile:
        """Replace a piece of text in a file and return the change as a diff.

        Use it to change a part of a file that you have read. The text must occur exactly once, unless replace_all.
        """
        settings = session.get(FilesSettings)
        instance = await session.instance()
        with file_failures("files_edit", path):
            info = await regular_file(instance, checked(path))
            # Bytes that are not UTF-8 are preserved.
            before = (await read_whole(instance, path, info.size, settings.whole_bytes)).decode(
                "utf-8", "surrogateescape"
            )
            after, replacements = replace_text(before, old_text, new_text, path, every=replace_all)
            data = after.encode("utf-8", "surrogateescape")
            await instance.write(path, data, executable=bool(info.mode & stat.S_IXUSR))
        changed = diff(before, after, short(path)).encode("utf-8", "replace").decode()
        return EditedFile(path=short(path), replacements=replacements, diff=changed)

    @tool(title="Move or rename")
    async def move(
        self,
        session: Session,
        source: Annotated[str, Field(description="The file or directory to move.")],
        destination: Annotated[str, Field(description="Its new path.")],
        replace: Annotated[bool, Field(description="Replace an existing file.")] = False,
    ) -> MovedPath:
        """Move or rename a file or directory.

        Use it to reorganise the workspace. An existing destination is kept unless `replace` is set.
        """
        instance = await session.instance()
        with file_failures("files_move", source):
            await instance.stat(checked(source))
        with file_failures("files_move", destination):
            await instance.move(source, checked(destination), replace=replace)
        return MovedPath(source=short(source), destination=short(destination))

    @tool(title="Delete")
    async def remove(
        self,
        session: Session,
        path: Annotated[str, Field(description="The file or directory to delete.")],
        recursive: Annotated[bool, Field(description="Delete a directory with its contents.")] = False,
    ) -> RemovedPath:
        """Delete a file, or a directory with its contents.

        Use it to clean up. It cannot be undone, except by a fork made before.
        """
        instance = await session.instance()
        with file_failures("files_remove", path):
            await instance.remove(checked(path), recursive=recursive)
        return RemovedPath(path=short(path))

    @tool(title="Describe a path", read_only=True)
    async def info(
        self,
        session: Session,
        path: Annotated[str, Field(description="A file, directory or symlink.")],
    ) -> PathInfo:
        """Return kind, size, permissions and modification time of a path.

        Use it to check whether a path exists, and how large it is, before you read it.
        """
        instance = await session.instance()
        with file_failures("files_info", path):
            info = await instance.stat(checked(path))
        return PathInfo(
            path=short(info.path),
            kind=info.kind,
            size=info.size,
            mode=stat.filemode(info.mode)[1:],
            modified=datetime.fromtimestamp(info.modified, UTC).isoformat(timespec="seconds"),
            target=info.target,
        )


class _SearchAnswer(BaseModel):
    found: SearchMatches | None = None
    wrong: str | None = None
    errno: int | None = Field(default=None, ge=0, le=4095)


async def find(instance: Instance, request: dict[str, object], timeout: float | None) -> SearchMatches:
    """Search files; see `_search_program` for the request.

    :raises OSError: if the path cannot be searched.
    :raises ToolFailure: `bad_arguments` for an invalid pattern, or the limit that was reached.
    """
    done = await instance.exec(
        ["python3", "-I", "-S", "-c", _program()], input=json.dumps(request).encode(), timeout=timeout
    )
    nothing = SearchMatches(matches=[], files_searched=0, truncated=True)
    check_outcome("files_search", done.outcome, done.detail, "", nothing)
    try:
        answer = await decode_untrusted(done.stdout, _SearchAnswer.model_validate_json)
    except FrameError as error:
        stderr = done.stderr[-300:].decode("utf-8", "replace")
        message = f"files_search: the search failed: {one_line(stderr or done.detail or str(error))}"
        raise ToolFailure(ErrorKind.FAILED, message) from None
    if answer.wrong is not None:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"files_search: {one_line(answer.wrong)}.")
    if answer.found is None:
        raise OSError(answer.errno or 0, "the path cannot be searched")
    matches = [match.model_copy(update={"path": short(match.path)}) for match in answer.found.matches]
    return answer.found.model_copy(update={"matches": matches})


@cache
def _program() -> str:
    return inspect.getsource(_search_program)
