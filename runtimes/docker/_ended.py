"""Why a container's first process ended before it said anything."""

from runtimes.docker.inside._places import OLD_PYTHON


def reason_of(status: int) -> str:
    """In a few words."""
    if status == OLD_PYTHON:
        return "its python3 is older than 3.11"
    return f"its first process ended with status {status}"
