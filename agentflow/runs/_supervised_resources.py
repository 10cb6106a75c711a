"""Children that hold something open, so that what a run stands on is started and stopped by its supervisor."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar, cast

import anyio

from agentflow.actors import ChildSpec, Context, ExitReason, StartFailed, Supervisor
from agentflow.errors import AgentFlowError

__all__ = ["Held", "hold", "innermost", "start"]

T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""Time to close: a server ends its sessions, a journal writes what it was given."""


class Held(Generic[T]):
    """A child that holds something open until it is asked to end."""

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opens = opens
        self.thing: T
        """What it holds."""

    async def run(self, context: Context) -> None:
        """Open it, wait, close it."""
        asked = anyio.Event()
        context.on_stop(asked.set)
        async with self._opens() as self.thing:
            context.ready()
            await asked.wait()


async def hold(house: Supervisor, id: str, opens: Callable[[], AbstractAsyncContextManager[T]]) -> T:
    """Have a supervisor hold something; gives it.

    :raises AgentFlowError: what opening it raised.
    """
    held = Held(opens)
    await start(
        house, ChildSpec(id=id, start=lambda: held, shutdown=CLOSE_SECONDS, start_timeout=CLOSE_SECONDS * 4)
    )
    return held.thing


async def start(house: Supervisor, spec: ChildSpec) -> None:
    """Start a child; what kept it from starting comes out as it is, where it says what to do.

    :raises AgentFlowError: what it was.
    """
    try:
        await house.start_child(spec)
    except StartFailed as failed:
        raise _cause(failed) from failed


def innermost(error: Exception) -> Exception:
    """The first thing that went wrong, out of the groups in which task groups wrap it."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _cause(failed: StartFailed) -> AgentFlowError:
    error: Exception = failed
    while (
        isinstance(error, StartFailed) and isinstance(error.why, ExitReason) and error.why.error is not None
    ):
        error = innermost(error.why.error)
    return error if isinstance(error, AgentFlowError) else failed
