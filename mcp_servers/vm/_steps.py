"""Setup steps of a machine: at the start of a session, and before an evaluation."""

import base64
import shlex
from typing import Annotated, Literal

import anyio
from pydantic import Field, model_validator

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.core._sessions import Session
from runtimes import ExecResult, Machine, Outcome, Screen

SCREEN_INTERVAL = 0.1
UNCHANGED_SCREENS = 3
"""Number of equal screenshots in a row: a caret that blinks every half second neither ends nor prolongs the wait."""
_WINDOW_INTERVAL = 0.05
_PIECE = 48 * 1024

Command = str | list[str]


class Execute(Section):
    """Command that must succeed."""

    command: Command
    """Shell line, or a program with its arguments."""
    timeout: float = Field(default=60.0, gt=0, le=600)
    """Time limit in seconds; a command that exceeds it is killed and fails the step."""


class Launch(Section):
    """Program that keeps running."""

    command: Command
    """Shell line, or a program with its arguments."""


class Upload(Section):
    """File to put on the machine: from the session's workspace, or with a given text."""

    path: str
    """Path on the machine."""
    local_path: str | None = None
    """Path in the workspace."""
    content: str | None = None
    """Text of the file."""

    @model_validator(mode="after")
    def _one_source(self) -> "Upload":
        if (self.local_path is None) == (self.content is None):
            raise ValueError("an upload needs either local_path or content")
        return self


class Uploads(Section):
    """Files to put on the machine."""

    files: list[Upload] = Field(min_length=1)
    """Files with their paths."""


class Wait(Section):
    """Condition to wait for."""

    window: str | None = None
    """A window whose title contains this text."""
    still: bool = False
    """An unchanging screen."""
    seconds: float = Field(default=30.0, gt=0, le=600)
    """Time limit in seconds; exceeding it fails the step, unless there is no other condition."""


class ExecuteStep(Section):
    """Run a command to its end."""

    type: Literal["execute", "command"]
    """`execute`."""
    parameters: Execute
    """Command."""


class LaunchStep(Section):
    """Start a program."""

    type: Literal["launch"]
    """`launch`."""
    parameters: Launch
    """Program."""


class UploadStep(Section):
    """Upload files."""

    type: Literal["upload", "upload_file"]
    """`upload`."""
    parameters: Uploads
    """Files."""


class WaitStep(Section):
    """Wait."""

    type: Literal["wait", "sleep"]
    """`wait`."""
    parameters: Wait = Wait()
    """Condition."""


Step = Annotated[ExecuteStep | LaunchStep | UploadStep | WaitStep, Field(discriminator="type")]
"""Step: `{type: launch, parameters: {command: xterm}}`."""


async def run_steps(steps: list[Step], machine: Machine, session: Session) -> None:
    """Run the steps in order.

    :raises ToolFailure: at the first that fails.
    """
    for number, step in enumerate(steps, 1):
        try:
            await _do(step, machine, session)
        except (ToolFailure, OSError, ValueError) as error:
            message = f"vm: step {number} ({step.type}) failed: {error}"
            raise ToolFailure(ErrorKind.FAILED, message) from None


async def _do(step: Step, machine: Machine, session: Session) -> None:
    if isinstance(step, ExecuteStep):
        done = await machine.exec(words(step.parameters.command), timeout=step.parameters.timeout)
        check(done, step.parameters.command)
    elif isinstance(step, LaunchStep):
        await _launch(machine, step.parameters.command)
    elif isinstance(step, UploadStep):
        for file in step.parameters.files:
            await _upload(machine, session, file)
    else:
        await _wait(machine, step.parameters)


def words(command: Command) -> list[str]:
    """Return a command as a program with its arguments."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else command


def check(done: ExecResult, command: Command) -> None:
    """Check that a command succeeded.

    :raises ToolFailure: otherwise, with its last line.
    """
    if done.outcome is Outcome.OK and done.exit_code == 0:
        return
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    reason = done.detail or f"exit code {done.exit_code}"
    last = f": {lines[-1][:200]}" if lines else ""
    raise ToolFailure(ErrorKind.FAILED, f"{_line(command)[:100]!r} ended with {reason}{last}")


def _line(command: Command) -> str:
    return command if isinstance(command, str) else shlex.join(command)


async def _launch(machine: Machine, command: Command) -> None:
    # A separate session without our pipes: it survives the shell that started it.
    started = f"setsid sh -c {shlex.quote(_line(command))} </dev/null >/dev/null 2>&1 &"
    check(await machine.exec(words(started)), command)


async def _upload(machine: Machine, session: Session, file: Upload) -> None:
    path = shlex.quote(file.path)
    start, piece = 0, await _piece(session, file, 0)
    check(await machine.exec(words(f'mkdir -p "$(dirname -- {path})" && : > {path}')), file.path)
    while piece:
        encoded = base64.b64encode(piece).decode()
        done = await machine.exec(words(f"echo {encoded} | base64 -d >> {path}"))
        check(done, f"write {file.path}")
        start += len(piece)
        piece = await _piece(session, file, start)


async def _piece(session: Session, file: Upload, start: int) -> bytes:
    """Return the next piece of a file; one in the workspace may be larger than the server's memory."""
    if file.content is not None:
        return file.content.encode()[start : start + _PIECE]
    return await (await session.instance()).read(file.local_path or "", offset=start, length=_PIECE)


async def _wait(machine: Machine, wait: Wait) -> None:
    with anyio.move_on_after(wait.seconds):
        if wait.still:
            await wait_unchanging(machine)
        elif wait.window is not None:
            while not any(wait.window in window.title for window in await machine.windows()):  # noqa: ASYNC110 - there is no event
                await anyio.sleep(_WINDOW_INTERVAL)
        else:
            await anyio.sleep_forever()
        return
    if wait.window is not None or wait.still:
        what = f"window with {wait.window!r} in its title" if wait.window is not None else "still screen"
        raise ToolFailure(ErrorKind.TIMEOUT, f"no {what} within {wait.seconds:g} seconds")


async def wait_unchanging(machine: Machine) -> Screen:
    """Return the screen once it has stopped changing. Wait forever if it never does."""
    last = await machine.screenshot()
    alike = 1
    while alike < UNCHANGED_SCREENS:
        await anyio.sleep(SCREEN_INTERVAL)
        now = await machine.screenshot()
        alike = alike + 1 if now.png == last.png else 1
        last = now
    return last
