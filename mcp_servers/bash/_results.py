"""What the bash tools return."""

from mcp_servers.core._call import Output

__all__ = ["Fed", "Interrupted", "Job", "Jobs", "Ran"]


class Ran(Output):
    """A command that ran to its end, well or badly."""

    stdout: str
    """What it printed; long output is cut in the middle."""
    stderr: str
    """What it printed to standard error."""
    exit_code: int | None
    """Its status: 0 is success, 128 + n means that signal n ended it; null if there is none."""
    cwd: str
    """The shell's working directory afterwards."""
    state_lost: bool = False
    """The shell has ended, in this command or before it: a fresh one goes on, files are kept."""
    note: str = ""
    """What else there is to know."""


class Fed(Output):
    """Input given to a running command."""

    bytes: int
    """How many bytes it was given."""


class Interrupted(Output):
    """The answer to an interrupt."""

    interrupted: bool
    """A command was running and has been interrupted; false: nothing ran."""


class Job(Output):
    """One background job of the shell."""

    number: int
    """Its number: `%1` is job 1."""
    pid: int
    """Its process id."""
    state: str
    """Running, Stopped, Done, Exit 1, …"""
    command: str
    """What was started."""


class Jobs(Output):
    """The background jobs of the shell."""

    jobs: list[Job]
    """By number."""
