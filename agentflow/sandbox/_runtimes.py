"""Runtimes shared by all sandboxes of an event loop: started at first use, stopped with the last user."""

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

import anyio

from agentflow.actors import Hosted
from mcp_servers import RuntimeSettings
from mcp_servers.core import runtime_maker
from runtimes import InstanceSpec, Runtime


class SharedRuntime:
    """A runtime of one event loop, with a count of its users."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self._users = 0
        self._turn = anyio.Lock()
        self._hosted: Hosted[Runtime] | None = None
        self._runtime: Runtime | None = None

    @property
    def running(self) -> bool:
        """Return whether it is started, not stopped and not dead."""
        return (
            self._hosted is not None
            and self._hosted.alive
            and self._runtime is not None
            and self._runtime.alive
        )

    async def borrow(self) -> Runtime:
        """Return the runtime, started if necessary; the caller must release it."""
        self._users += 1
        try:
            return await self.current()
        except BaseException:
            self._users -= 1
            raise

    async def current(self) -> Runtime:
        """Return the runtime for a current user: a new one if its processes have died."""
        async with self._turn:
            if self._runtime is None or not self.running:
                if self._hosted is not None:
                    await self._hosted.close()
                self._hosted = Hosted(self._make)
                self._runtime = await self._hosted.open()
            return self._runtime

    async def give_back(self) -> None:
        """Release it; the last user stops it."""
        self._users -= 1
        async with self._turn:
            if self._users == 0 and self._hosted is not None:
                hosted, self._hosted, self._runtime = self._hosted, None, None
                await hosted.close()


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedRuntime]]" = WeakKeyDictionary()


def shared_runtime(
    choice: str | RuntimeSettings = "process", spec: InstanceSpec | None = None
) -> SharedRuntime:
    """Return the running loop's runtime of a kind. Instances kept ready have the given spec.

    :raises ConfigurationError: if there is no such runtime or option.
    """
    spec = spec or InstanceSpec()
    stocked = isinstance(choice, RuntimeSettings) and choice.pool > 0
    key = f"{choice!r}{spec if stocked else ''}"
    kinds = _shared.setdefault(asyncio.get_running_loop(), {})
    if key not in kinds:
        kinds[key] = SharedRuntime(runtime_maker(choice, spec))
    return kinds[key]
