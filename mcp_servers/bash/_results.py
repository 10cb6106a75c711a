"""Results of the bash tools."""

import re

from mcp_servers.core._call import Output

LIST_JOBS = "LC_ALL=C builtin jobs -l"
"""The command whose output `parse_jobs` reads."""

_JOB = re.compile(r"\[(?P<number>\d+)\][+-]?\s+(?P<pid>\d+)\s+(?P<state>\S+(?: \S+)*?)\s{2,}(?P<command>.*)")


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
