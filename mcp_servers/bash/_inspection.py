"""Inspection of a workspace for evaluators: files, git repositories and outputs, outside the session's shell."""

import inspect
import json
from collections.abc import Sequence
from functools import cache

from pydantic import BaseModel, Field, ValidationError

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.bash import _inspection_program
from mcp_servers.core._call import Output
from mcp_servers.core._running import check_outcome
from runtimes import WORKSPACE, ExecResult, FrameError, Instance, Outcome, decode_untrusted

OUTPUT_CHARACTERS = 20_000
COMMAND_SECONDS = 20.0
COMMITS = 50

# The first directory of PATH is the session's own, where it could put another `python3`.
_START = 'PATH="${PATH#"$HOME/.local/bin:"}" exec python3 -I -S -c "$0"'
_GIT = (
    "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*",
    "--no-optional-locks",
)  # fmt: skip
_GIT_ENV = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}


class InspectedEntry(Output):
    """An entry of the workspace."""

    path: str
    """Path relative to the workspace."""
    kind: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int
    """Size in bytes."""
    mode: str
    """Permission bits in octal digits."""
    sha256: str | None = None
    """Hash of a file's content; null for files over 8 MiB."""
    text: str | None = None
    """Content of a text file of at most 32 KiB."""
    target: str | None = None
    """Target of a symlink."""
    members: dict[str, str] | None = None
    """Files in an archive (tar, zip) with the hashes of their content."""
    unpacked: str | None = None
    """Text in a gzip file that is no archive."""


class InspectedRepository(Output):
    """A git repository."""

    path: str
    """Path of its directory."""
    branch: str
    """Current branch."""
    commits: list[str]
    """Subjects of its last 50 commits, the newest first."""
    changes: list[str]
    """Files that are not committed, with their states."""


class InspectedCommand(Output):
    """A command that ran in a new shell."""

    command: str
    """The command."""
    exit_code: int
    """Exit status; 128 + n if signal n ended it, 124 at its time limit."""
    output: str
    """Standard output, at most 20,000 characters."""


class WorkspaceInspection(Output):
    """The files of the workspace, and the outputs of commands."""

    files: list[InspectedEntry]
    """Entries below the workspace by path, without caches and the insides of git repositories."""
    repositories: list[InspectedRepository]
    """Its git repositories."""
    commands: list[InspectedCommand]
    """The commands, in the order given."""
    complete: bool
    """False if there are more entries than `limit`."""


class _Entry(BaseModel):
    mode: int
    size: int
    kind: str
    sha256: str | None = None
    text: str | None = None
    target: str | None = None
    members: dict[str, str] | None = None
    unpacked: str | None = None


class _Listing(BaseModel):
    files: dict[str, _Entry]
    repositories: list[str] = Field(max_length=1_000)
    complete: bool


async def inspect_workspace(
    instance: Instance, commands: Sequence[str], limit: int, timeout: float | None
) -> WorkspaceInspection:
    """Inspect a workspace: files first, then repositories, then commands, each in a process of its own.

    A program of the workspace can therefore change only the result of its own command.

    :raises ToolFailure: if the files can't be listed.
    """
    done = await instance.exec(
        ["/bin/sh", "-c", _START, _program()],
        input=json.dumps({"root": WORKSPACE, "limit": limit}).encode(),
        timeout=timeout,
    )
    nothing = WorkspaceInspection(files=[], repositories=[], commands=[], complete=False)
    check_outcome("bash_inspect", done.outcome, done.detail, "", nothing)
    try:
        listing = await decode_untrusted(done.stdout, _Listing.model_validate_json)
    except (ValidationError, FrameError):
        reason = done.stderr.decode("utf-8", "replace")[-300:] or done.detail
        raise ToolFailure(ErrorKind.FAILED, f"bash_inspect: the files can't be listed: {reason}") from None
    entries = [
        InspectedEntry(path=path, mode=f"{entry.mode:o}", **entry.model_dump(exclude={"mode"}))
        for path, entry in listing.files.items()
    ]
    return WorkspaceInspection(
        files=sorted(entries, key=lambda entry: entry.path),
        repositories=[await _repository(instance, path) for path in listing.repositories[:20]],
        commands=[await _command(instance, command) for command in commands],
        complete=listing.complete,
    )


async def _repository(instance: Instance, path: str) -> InspectedRepository:
    async def git(*arguments: str) -> list[str]:
        argv = [*_GIT, "-C", path, *arguments]
        done = await instance.exec(argv, env=_GIT_ENV, timeout=COMMAND_SECONDS)
        return _text(done).splitlines() if done.exit_code == 0 else []

    branch = await git("symbolic-ref", "--short", "HEAD")
    return InspectedRepository(
        path=path,
        branch=branch[0] if branch else "",
        commits=await git("log", f"-{COMMITS}", "--format=%s"),
        changes=await git("status", "--porcelain", "--untracked-files=all"),
    )


async def _command(instance: Instance, command: str) -> InspectedCommand:
    done = await instance.exec(
        ["/bin/bash", "--noprofile", "--norc", "-c", command], cwd=WORKSPACE, timeout=COMMAND_SECONDS
    )
    code = 124 if done.outcome is Outcome.TIMEOUT else done.exit_code
    return InspectedCommand(command=command, exit_code=code, output=_text(done))


def _text(done: ExecResult) -> str:
    return done.stdout.decode("utf-8", "replace")[:OUTPUT_CHARACTERS]


@cache
def _program() -> str:
    return inspect.getsource(_inspection_program)
