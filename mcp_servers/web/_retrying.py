"""Trying again what failed for the moment, as long as that makes sense."""

from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._outside import Outside

__all__ = ["PASSING", "Passing", "retried", "wait_of"]

T = TypeVar("T")

PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone the next time."""

FIRST_WAIT = 0.5
LONGEST_WAIT = 20.0


class Passing(Exception):
    """A request failed in a way that may be gone the next time."""

    def __init__(self, failure: ToolFailure, wait: float | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.wait = wait


async def retried(work: Callable[[], Awaitable[T]], attempts: int, outside: Outside) -> T:
    """What the work gives, at the latest at the last attempt.

    :raises ToolFailure: if that fails too, or the other side wants a wait that is too long.
    """
    attempt = 0
    while True:
        try:
            return await work()
        except Passing as passing:
            attempt += 1
            wait = FIRST_WAIT * 2 ** (attempt - 1) if passing.wait is None else passing.wait
            if attempt >= attempts or wait > LONGEST_WAIT:
                times = f" after {attempt} attempts" if attempt > 1 else ""
                later = f" (it asks to wait {wait:.0f} s)" if wait > LONGEST_WAIT else ""
                message = f"{passing.failure.message.removesuffix('.')}{times}{later}."
                raise ToolFailure(passing.failure.kind, message) from None
            await outside.sleep(wait)


def wait_of(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that `Retry-After` asks for."""
    said = headers.get("Retry-After", "").strip()
    if said.isdecimal() and said.isascii():
        return float(said[:9])
    try:
        return max(parsedate_to_datetime(said).timestamp() - now, 0.0)
    except ValueError:
        return None


def kind_of(status: int) -> ErrorKind:
    """What a status means for the caller."""
    if status in (404, 410):
        return ErrorKind.NOT_FOUND
    if status in (401, 403, 451):
        return ErrorKind.DENIED
    if status == 429:
        return ErrorKind.BUSY
    return ErrorKind.UNAVAILABLE if status >= 500 or status == 408 else ErrorKind.FAILED
