"""Asks the program in the session's sandbox about files. What comes back is validated, never trusted."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import Output
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_outcome
from mcp_servers.data._program import COMMAND, input_of
from mcp_servers.data._results import Column, FileProfile, Link
from runtimes import Instance

__all__ = ["FoundFiles", "ReadRows", "ask"]

M = TypeVar("M", bound="Answer")

ENDING_SECONDS = 3.0
"""How much later than the program's own time is up it is ended."""
ENOENT = 2


class Answer(BaseModel):
    """What every answer may say instead of what was asked for."""

    unreadable: str | None = None
    """Why there is nothing."""
    errno: int | None = None
    """The system's number for that."""


class FoundFiles(Answer):
    """What lies in a folder."""

    files: list[FileProfile] = []
    """Data files."""
    links: list[Link] = []
    """How they may be joined."""
    others: list[str] = []
    """Other files."""
    more: int = 0
    """Data files that were not looked into."""


class ReadRows(Answer):
    """Rows of a file."""

    columns: list[Column] = []
    """Its columns."""
    rows: list[list[object]] = []
    """The rows."""
    more: bool = False
    """There are more."""
    note: str = ""
    """What was done to read it."""
    sheet: str | None = None
    """The sheet that was read."""
    wrong_column: str | None = None
    """A column that was asked for and is not there."""
    known: list[str] = []
    """The columns that are there."""
    wrong_filter: str | None = None
    """What is wrong with the condition."""


async def ask(
    tool: str,
    kind: type[M],
    instance: Instance,
    request: Mapping[str, object],
    paths: list[str],
    seconds: float,
) -> tuple[M, str]:
    """The answer for the first of the paths that is there, and that path.

    :raises ToolFailure: if there is none.
    """
    answer, path = kind(), paths[0]
    for path in paths:
        given = {**request, "path": path, "seconds": seconds}
        done = await instance.exec(COMMAND, input=input_of(given), timeout=seconds + ENDING_SECONDS)
        check_outcome(tool, done.outcome, done.detail, "", Output())
        try:
            answer = kind.model_validate_json(done.stdout)
        except ValidationError:
            raise ToolFailure(ErrorKind.FAILED, f"{tool}: {_why(done.stderr)}") from None
        if answer.errno != ENOENT:
            break
    if answer.errno is not None:
        known = ErrorKind.NOT_FOUND if answer.errno == ENOENT else ErrorKind.FAILED
        raise ToolFailure(known, f"{tool}: {paths[0]!r} can't be read: {answer.unreadable}.")
    if isinstance(answer, ReadRows):
        _check(tool, answer, path)
    return answer, path


def _check(tool: str, answer: ReadRows, path: str) -> None:
    if answer.wrong_column is not None:
        hint = did_you_mean(answer.wrong_column, answer.known)
        message = f"{tool}: no column {answer.wrong_column!r} in {path!r}.{hint}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.wrong_filter is not None:
        message = f"{tool}: the filter can't be used: {' '.join(answer.wrong_filter.split())}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.unreadable is not None:
        raise ToolFailure(ErrorKind.FAILED, f"{tool}: {path!r} can't be read: {answer.unreadable}.")


def _why(stderr: bytes) -> str:
    last = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if "No module named" in last:
        return f"the sandbox's Python lacks a package ({last[-200:]}): install agentflow[data]."
    return f"looking into the files failed: {last[-300:]}"
