"""Queries about files, answered by a program in the session's sandbox. Its replies are validated."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, Field

import mcp_servers
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.extras import missing_extra, with_command
from mcp_servers.core._call import Output
from mcp_servers.core._failures import did_you_mean, one_line, quoted
from mcp_servers.core._running import check_outcome
from mcp_servers.data._results import ColumnLink, FileProfile, SliceColumn
from runtimes import FrameError, Instance, JsonLimits, decode_untrusted

_MODULES: Final = (
    "mcp_servers.sql.inside._values",
    "mcp_servers.data.inside._sources",
    "mcp_servers.data.inside._profile",
    "mcp_servers.data.inside._main",
)
"""Modules of the program, in import order."""
_START: Final = """
import json, sys, types
given = json.load(sys.stdin)
for name, source in given["modules"]:
    for end in [*[i for i, c in enumerate(name) if c == "."], None]:
        sys.modules.setdefault(name[:end], types.ModuleType(name[:end]))
    exec(compile(source, name, "exec"), vars(sys.modules[name]))
sys.modules[given["modules"][-1][0]].main(given["request"])
"""
_COMMAND: Final = ("python3", "-I", "-c", _START)
M = TypeVar("M", bound="FileReply")
ENDING_SECONDS = 3.0
"""Time after the program's own limit at which it is killed."""
ENOENT = 2
_MOST_STDERR: Final = 4_000


class FileReply(BaseModel):
    """Reply of the program, with an error if it failed."""

    unreadable: str | None = None
    """Reason of a failure."""
    errno: int | None = Field(default=None, ge=0, le=4095)
    """`errno` of a failure."""


class FoundFiles(FileReply):
    """Files of a directory."""

    files: list[FileProfile] = []
    """Data files."""
    links: list[ColumnLink] = []
    """Columns by which they may be joined."""
    others: list[str] = []
    """Other files."""
    more: int = 0
    """Number of data files that were not inspected."""


class ReadRows(FileReply):
    """Rows of a file."""

    columns: list[SliceColumn] = []
    """Columns."""
    rows: list[list[object]] = []
    """The rows."""
    more: bool = False
    """There are more rows."""
    note: str = ""
    """Note on how the file was read."""
    sheet: str | None = None
    """Sheet that was read."""
    wrong_column: str | None = None
    """Requested column that does not exist."""
    known: list[str] = []
    """Existing columns."""
    wrong_filter: str | None = None
    """Error in the condition."""


async def ask(
    tool: str,
    kind: type[M],
    instance: Instance,
    request: Mapping[str, object],
    paths: list[str],
    seconds: float,
    limits: JsonLimits,
) -> tuple[M, str]:
    """Query the first of the paths that exists; return the reply and that path.

    :param limits: limits of the reply, which the sandbox can forge.
    :raises ToolFailure: if none exists, or the query fails.
    """
    answer, path = kind(), paths[0]
    for path in paths:
        given = {"modules": program_sources(), "request": {**request, "path": path, "seconds": seconds}}
        done = await instance.exec(
            _COMMAND, input=json.dumps(given).encode(), timeout=seconds + ENDING_SECONDS
        )
        check_outcome(tool, done.outcome, done.detail, "", Output())
        if not done.stdout:
            raise ToolFailure(ErrorKind.FAILED, f"{tool}: {_why(done.stderr)}")
        try:
            answer = await decode_untrusted(done.stdout, kind.model_validate_json, limits)
        except FrameError as error:
            message = f"{tool}: the sandbox's answer can't be used: {error}"
            raise ToolFailure(ErrorKind.FAILED, message) from None
        if answer.errno != ENOENT:
            break
    if answer.errno is not None:
        kind_of_error = ErrorKind.NOT_FOUND if answer.errno == ENOENT else ErrorKind.FAILED
        reason = one_line(answer.unreadable or "")
        raise ToolFailure(kind_of_error, f"{tool}: {paths[0]!r} can't be read: {reason}.")
    if isinstance(answer, ReadRows):
        _check(tool, answer, path)
    return answer, path


def _check(tool: str, answer: ReadRows, path: str) -> None:
    if answer.wrong_column is not None:
        hint = did_you_mean(answer.wrong_column, answer.known)
        message = f"{tool}: no column {quoted(answer.wrong_column)} in {path!r}.{hint}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.wrong_filter is not None:
        message = f"{tool}: the filter can't be used: {one_line(answer.wrong_filter)}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.unreadable is not None:
        raise ToolFailure(
            ErrorKind.FAILED, f"{tool}: {path!r} can't be read: {with_command(one_line(answer.unreadable))}."
        )


def _why(stderr: bytes) -> str:
    last = stderr[-_MOST_STDERR:].decode("utf-8", "replace").strip().rpartition("\n")[2]
    if "No module named" in last:
        return missing_extra("the sandbox's Python", "data")
    return f"looking into the files failed: {one_line(last[-300:])}"


@cache
def program_sources() -> list[tuple[str, str]]:
    """Return the program's source, which is part of its input, because the sandbox cannot see the project."""
    root = Path(mcp_servers.__file__).parents[1]
    return [(name, (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")) for name in _MODULES]
