"""Pool of ready instances, refilled in the background."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio

from agentflow.errors import AgentFlowError
from runtimes._protocol import InstanceSpec

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

AnInstance = TypeVar("AnInstance")


class InstancePool(Generic[AnInstance]):
    """Keep up to `size` instances of one spec ready. An async context manager."""

    def __init__(
        self, make: Callable[[InstanceSpec], Awaitable[AnInstance]], size: int, spec: InstanceSpec
    ) -> None:
        self._make = make
        self._size = size
        self._spec = spec
        self._ready: deque[AnInstance] = deque()
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
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    async def _fill(self) -> None:
        while True:
            while len(self._ready) < self._size:
                try:
                    self._ready.append(await self._make(self._spec))
                except (AgentFlowError, OSError):
                    # The next caller makes an instance itself and gets the error.
                    break
            self._filled.set()
            await self._wanted.wait()
            self._wanted = anyio.Event()

    async def full(self) -> None:
        """Wait until the pool is full, or until filling it has failed."""
        if self._tasks is not None:
            await self._filled.wait()

    def take(self, spec: InstanceSpec) -> AnInstance | None:
        """Return a ready instance if it has the wanted spec (more sessions may be warm), else `None`."""
        wanted = replace(spec, warm=self._spec.warm | spec.warm)
        if not self._ready or wanted != self._spec:
            return None
        self._wanted.set()
        self._filled = anyio.Event()
        return self._ready.popleft()
