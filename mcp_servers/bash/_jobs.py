"""Reads what the shell's own `jobs` says."""

import re

from mcp_servers.bash._results import Job

__all__ = ["LIST_JOBS", "parse_jobs"]

LIST_JOBS = "LC_ALL=C builtin jobs -l"
"""The command whose output `parse_jobs` reads."""

_JOB = re.compile(r"\[(?P<number>\d+)\][+-]?\s+(?P<pid>\d+)\s+(?P<state>\S+(?: \S+)*?)\s{2,}(?P<command>.*)")


def parse_jobs(listing: str) -> list[Job]:
    """The jobs of a listing. The further lines of a pipeline or of a command of several lines belong to its job."""
    jobs: list[Job] = []
    for line in listing.splitlines():
        match = _JOB.fullmatch(line)
        if match is not None:
            jobs.append(
                Job(
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
