"""The tools of the bash backend, and the inspection of a workspace for evaluators, outside the session's shell."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import BaseModel, Field, ValidationError

from agentflow.errors import ErrorKind, InstanceGone, RuntimeFailure, ToolFailure
from mcp_servers.bash import _inspection_program
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Output
from mcp_servers.core._running import (
    RunSettings,
    check_outcome,
    progress_of,
    read_settings,
    sendable,
    shown,
)
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from runtimes import WORKSPACE, ExecResult, FrameError, Instance, Outcome, RunResult, decode_untrusted

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


class ShellResult(Output):
    """A command that ran to its end, successfully or not."""

    stdout: str
    """Standard output; long output is truncated in the middle."""
    stderr: str
    """Standard error."""
    exit_code: int | None
    """Exit status: 0 is success, 128 + n means killed by signal n; null if there is none."""
    cwd: str
    """The shell's working directory afterwards."""
    state_lost: bool = False
    """The shell has ended, in this command or before it; a new one takes over, and files are kept."""
    note: str = ""
    """Further information."""


class InputWritten(Output):
    """Input written to a running command."""

    bytes: int
    """Number of bytes written."""


class InterruptResult(Output):
    """Answer to an interrupt."""

    interrupted: bool
    """True if a running command was interrupted; false if none was running."""


class ShellJob(Output):
    """One background job of the shell."""

    number: int
    """Job number: `%1` is job 1."""
    pid: int
    """Process id."""
    state: str
    """Running, Stopped, Done, Exit 1, …"""
    command: str
    """The command line."""


class ShellJobs(Output):
    """The background jobs of the shell."""

    jobs: list[ShellJob]
    """Jobs in the order of their numbers."""


CHUNK_BYTES = 4096
RETRY_SECONDS = 0.02
_LOST = "The shell has ended: the next command runs in a new one; files are kept."
_WAS_LOST = "The shell had ended before: this command ran in a new one; files are kept."


class BashSettings(RunSettings):
    """Settings of the bash backend."""


@dataclass(slots=True)
class ShellState:
    """State of a session's shell."""

    settings: BashSettings
    """The session's settings."""
    readers: int = 0
    """Number of running or queued commands with an open standard input."""


class BashBackend(Backend):
    """A bash shell in each session that keeps its working directory, variables and functions from call to call."""

    name = "bash"
    description = "Run shell commands in a bash that keeps its state."
    settings_model = BashSettings
    cards = Path(__file__).with_name("cards.toml")

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; the shell starts with the first command."""
        session.put(ShellState(read_settings(BashSettings, self.name, settings)))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the settings; the shell was forked with the instance."""
        forked.put(ShellState(session.get(ShellState).settings))

    @tool(title="Run a shell command", open_world=False)
    async def run(
        self,
        session: Session,
        context: CallContext,
        command: Annotated[str, Field(description="Command, pipeline or whole script to run.")],
        timeout: Annotated[
            float | None, Field(gt=0, description="Seconds after which the run is killed.")
        ] = None,
        stdin_open: Annotated[
            bool,
            Field(
                description="Keep standard input open for bash_input; otherwise it is empty from the start."
            ),
        ] = False,
    ) -> ShellResult:
        """Run a bash command in the session's workspace and return its output and exit code.

        Use it for shell work: files, programs, scripts, pipes. Working directory, variables, functions and
        options last from call to call. A command that fails is not a failed call: look at exit_code.
        """
        shell = session.get(ShellState)
        instance = await session.instance()
        shell.readers += stdin_open
        try:
            result = await instance.run(
                "bash",
                sendable("bash_run", command, without="\0"),
                timeout=context.run_seconds(timeout or shell.settings.timeout),
                on_output=progress_of(context),
                stdin_open=stdin_open,
            )
        finally:
            shell.readers -= stdin_open
        ran = self._ran(result, session, context)
        check_outcome("bash_run", result.outcome, result.detail, ran.note, ran)
        return ran

    @tool(title="Feed a running command", interjects=True)
    async def input(
        self,
        session: Session,
        text: Annotated[str, Field(description="Text to write, including line ends: 'yes\\n'.")],
    ) -> InputWritten:
        """Write text to the standard input of the running command.

        Use it to answer a program that was started by bash_run with stdin_open and still runs in another call.
        """
        data = text.encode("utf-8", "replace")
        for start in range(0, len(data), CHUNK_BYTES):
            await self._write_input(session, data[start : start + CHUNK_BYTES], start)
        return InputWritten(bytes=len(data))

    @tool(title="Interrupt a running command", idempotent=True, interjects=True)
    async def interrupt(self, session: Session) -> InterruptResult:
        """Interrupt the running command, as Ctrl-C does; the shell and its state continue.

        Use it when a command started in another call takes too long.
        """
        instance = session.current_instance
        return InterruptResult(interrupted=instance is not None and await instance.interrupt("bash"))

    @tool(title="List background jobs", read_only=True)
    async def jobs(self, session: Session, context: CallContext) -> ShellJobs:
        """List the background jobs of the session's shell: commands started with `&` that have not been waited for.

        Use it to see whether a server or a long computation still runs. `kill %1` in bash_run ends job 1.
        """
        instance = await session.instance()
        result = await instance.run("bash", LIST_JOBS, timeout=context.run_seconds())
        ran = self._ran(result, session, context)
        check_outcome("bash_jobs", result.outcome, result.detail, ran.note, ran)
        return ShellJobs(jobs=parse_jobs(result.stdout))

    @tool(title="Inspect the workspace", open_world=False)
    async def inspect(
        self,
        session: Session,
        context: CallContext,
        commands: Annotated[
            list[str],
            Field(max_length=20, description="Commands to run in new shells; they may change files."),
        ] = [],  # noqa: B006 - schemas need the literal default
        limit: Annotated[int, Field(ge=1, le=10_000, description="How many entries to list.")] = 2_000,
    ) -> WorkspaceInspection:
        """Return all files of the workspace with their content, its git repositories, and the output of commands.

        For evaluators of a task, not for the agent. It does not pass through the session's shell: functions, aliases and
        variables of the shell have no effect. Call it in a fork if there are commands.
        """
        return await inspect_workspace(
            await session.instance(),
            [sendable("bash_inspect", command, without="\0") for command in commands],
            limit,
            context.run_seconds(),
        )

    @staticmethod
    async def _write_input(session: Session, piece: bytes, before: int) -> None:
        instance = session.current_instance
        while instance is not None and session.get(ShellState).readers:
            try:
                return await instance.send_input("bash", piece)
            except InstanceGone:
                raise
            except RuntimeFailure:
                # The command has not read earlier input yet; a chunk is written whole or not at all.
                await anyio.sleep(RETRY_SECONDS)
        message = "bash_input: no running command reads input: start one with bash_run and stdin_open."
        raise ToolFailure(ErrorKind.NOT_FOUND, message, {"bytes": before})

    @staticmethod
    def _ran(result: RunResult, session: Session, context: CallContext) -> ShellResult:
        limit = session.get(ShellState).settings.output_characters
        notes = ["Interrupted."] if result.outcome is Outcome.INTERRUPTED else []
        if result.state_lost:
            notes.append(_WAS_LOST if result.fresh else _LOST)
        return ShellResult(
            stdout=shown(result.stdout, "stdout.txt", limit, session, context),
            stderr=shown(result.stderr, "stderr.txt", limit, session, context),
            exit_code=result.exit_code,
            cwd=result.cwd,
            state_lost=result.state_lost,
            note=" ".join(notes),
        )


LIST_JOBS = "LC_ALL=C builtin jobs -l"
"""The command whose output `parse_jobs` reads."""


_JOB = re.compile(r"\[(?P<number>\d+)\][+-]?\s+(?P<pid>\d+)\s+(?P<state>\S+(?: \S+)*?)\s{2,}(?P<command>.*)")


def parse_jobs(listing: str) -> list[ShellJob]:
    """Parse a job listing. Continuation lines of a pipeline or a multi-line command belong to the job above."""
    jobs: list[ShellJob] = []
    for line in listing.splitlines():
        match = _JOB.fullmatch(line)
        if match is not None:
            jobs.append(
                ShellJob(
                    number=int(match["number"]),
                    pid=int(match["pid"]),
                    state=match["state"],
                    command=match["command"].removesuffix("&").strip(),
                )
            )
        elif jobs:
            more = re.sub(r"^\s*(\d+\s+)?", "", line).removesuffix("&").strip()
            jobs[-1] = jobs[-1].model_copy(update={"command": f"{jobs[-1].command} {more}".strip()})
    return jobs
