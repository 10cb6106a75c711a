"""Supervised children, and the context they run in."""

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

from agentflow.actors._clock import Clock


class Child(Protocol):
    """Anything that can be supervised: an actor, a process, a supervisor, a function. See docs/actors.md."""

    async def run(self, context: "Context") -> None:
        """Run: call `context.ready()` once started, and return when done.

        It runs in a task of its own. An exception is a crash; `Shutdown` is a deliberate end.
        """
        ...


class Ignore(Exception):
    """Raised by `Context.ignore`, and caught by the code that runs the child."""


class Context:
    """A child's connection to its supervisor. See docs/actors.md."""

    __slots__ = ("_on_ready", "clock", "id", "is_ready", "stop_callback")

    def __init__(self, id: str, clock: Clock, on_ready: Callable[[], None]) -> None:
        self.id = id
        """Id of the child."""
        self.clock = clock
        """Source of time."""
        self.is_ready = False
        """`ready` was called."""
        self.stop_callback: Callable[[], None] | None = None
        """Callback that asks the child to end; `None` cancels it."""
        self._on_ready = on_ready

    def ready(self) -> None:
        """Report that the child has started: its supervisor starts the next one."""
        self.is_ready = True
        self._on_ready()

    def ignore(self) -> NoReturn:
        """Report that there is nothing to do: the supervisor continues without this child."""
        raise Ignore

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Register a callback that asks the child to end; it is cancelled only after the spec's `shutdown` seconds.

        Without a callback the child is cancelled at once, and may clean up as any cancelled task.
        """
        self.stop_callback = callback


class FunctionChild:
    """Child that runs an async function; it counts as started at once. See docs/actors.md."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._function = function

    async def run(self, context: Context) -> None:
        """Run the function to its end."""
        context.ready()
        await self._function()
