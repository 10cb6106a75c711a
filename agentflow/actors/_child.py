"""What a supervised child is, and what it is given to run with."""

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

from agentflow.actors._clock import Clock


class Child(Protocol):
    """Anything that can be supervised: an actor, a process, a supervisor, a plain function."""

    async def run(self, context: "Context") -> None:
        """Live: call `context.ready()` when others may count on it, and return when done.

        It runs in a task of its own. Raising is crashing; raising `Shutdown` is ending on purpose.
        """
        ...


class Ignore(Exception):
    """Raised by `Context.ignore`; caught by whoever runs the child."""


class Context:
    """One child's line to its supervisor."""

    __slots__ = ("_on_ready", "clock", "id", "is_ready", "stop_callback")

    def __init__(self, id: str, clock: Clock, on_ready: Callable[[], None]) -> None:
        self.id = id
        """The child's id."""
        self.clock = clock
        """Where time comes from."""
        self.is_ready = False
        """Whether `ready` was called."""
        self.stop_callback: Callable[[], None] | None = None
        """How the child wants to be asked to end; `None`: by being cancelled."""
        self._on_ready = on_ready

    def ready(self) -> None:
        """The child has started: its supervisor goes on with the next one."""
        self.is_ready = True
        self._on_ready()

    def ignore(self) -> NoReturn:
        """There is nothing to do for this child: its supervisor goes on without it."""
        raise Ignore

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Be asked to end by a call, and only be cancelled if that takes longer than the spec's `shutdown`.

        Without it the child is cancelled at once, and may clean up as any cancelled task may.
        """
        self.stop_callback = callback


class Task:
    """A child out of an async function. It counts as started as soon as it runs."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._function = function

    async def run(self, context: Context) -> None:
        """Run the function to its end."""
        context.ready()
        await self._function()
