"""Pool of ready instances or machines, refilled in the background."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio

from agentflow.errors import AgentFlowError
from runtimes._protocol import InstanceSpec

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

ReadyT = TypeVar("ReadyT")


class ReadyPool(Generic[ReadyT]):
    """Keep up to `size` instances or machines ready. An async context manager."""

    def __init__(self, make: Callable[[], Awaitable[ReadyT]], size: int) -> None:
        self._make = make
        self._size = size
        self._ready: deque[ReadyT] = deque()
        self._busy = False
        self._wanted = anyio.Event()
        self._filled = anyio.Event()
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._size:
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._fill)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

    async def _fill(self) -> None:
        while True:
            self._busy = True
            while len(self._ready) < self._size:
                try:
                    self._ready.append(await self._make())
                except (AgentFlowError, OSError):
                    # The next caller makes one itself and gets the error.
                    break
            self._busy = False
            self._filled.set()
            await self._wanted.wait()
            self._wanted = anyio.Event()

    @property
    def filling(self) -> bool:
        """Nothing is ready, and the first is being made."""
        return self._busy and not self._ready

    async def full(self) -> None:
        """Wait until the pool is full, or until filling it has failed."""
        if self._tasks is not None:
            await self._filled.wait()

    def take(self) -> ReadyT | None:
        """Return one that is ready, if any; another is made in the background."""
        if not self._ready:
            return None
        self._wanted.set()
        self._filled = anyio.Event()
        return self._ready.popleft()


class InstancePool(ReadyPool[ReadyT]):
    """Pool of instances of one spec."""

    def __init__(
        self, make: Callable[[InstanceSpec], Awaitable[ReadyT]], size: int, spec: InstanceSpec
    ) -> None:
        super().__init__(lambda: make(spec), size)
        self._spec = spec

    def take_for(self, spec: InstanceSpec) -> ReadyT | None:
        """Return a ready instance if it has the wanted spec (more sessions may be warm), else `None`."""
        wanted = replace(spec, warm=self._spec.warm | spec.warm)
        return self.take() if wanted == self._spec else None
