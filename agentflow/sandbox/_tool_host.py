"""Interface between a sandbox and its tools, and the tools of this process: direct calls, without a protocol."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import anyio

from agentflow.actors import Hosted
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox._names import Names, backend_of
from agentflow.sandbox._settings import SandboxSettings
from mcp_servers import (
    Backend,
    RuntimeSettings,
    TableLimits,
    Tool,
    ToolResult,
    ToolTable,
    load_backend,
)
from mcp_servers.core import LOCAL, ProgressSink, did_you_mean, runtime_maker
from runtimes import InstanceSpec, Runtime


class ToolHost(ABC):
    """Access to a tool table. A sandbox and its forks share one host; the last of them closes it."""

    def __init__(self) -> None:
        self._holders = 0

    @property
    @abstractmethod
    def names(self) -> Names:
        """The tools, by all their names; known once the host is open."""

    def names_for(self, wanted: Iterable[str]) -> Names:
        """Return the names, after loading the tools that these names and patterns may mean.

        :raises ToolFailure: `unavailable`, if they can't be loaded.
        """
        return self.names

    @abstractmethod
    async def open(self) -> None:
        """Prepare for calls. Does nothing if it is open."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources."""

    @abstractmethod
    async def warmup(self, backends: Iterable[str]) -> None:
        """Start backends that have not started.

        :raises ToolFailure: if there is no such backend, or it can't be started.
        """

    @abstractmethod
    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, object],
        *,
        session: str | None,
        timeout: float | None,
        progress: ProgressSink | None,
    ) -> ToolResult:
        """Call a tool, once. Never raises for a failed call."""

    @abstractmethod
    async def read(self, uri: str) -> bytes:
        """Return the target of a result's link.

        :raises ToolFailure: `not_found`.
        """

    def retain(self) -> None:
        """Register one more sandbox."""
        self._holders += 1

    async def release(self) -> None:
        """Unregister a sandbox; the last one closes the host."""
        self._holders -= 1
        if self._holders == 0:
            await self.close()


class LocalToolHost(ToolHost):
    """Tool table of this process. Backends are loaded and started at first use."""

    def __init__(
        self,
        settings: SandboxSettings,
        backends: Sequence[Backend],
        runtime: Runtime | None = None,
        *,
        unloaded: Iterable[str] = (),
    ) -> None:
        """:param unloaded: names of further backends, in the order of their tools."""
        super().__init__()
        self._settings = settings
        self._unloaded = dict.fromkeys(unloaded)
        self._order = {name: index for index, name in enumerate(self._unloaded)}
        self._own_runtime = runtime
        self._runtime_turn = anyio.Lock()
        self._shared: SharedRuntime | None = None
        self._table = ToolTable(
            backends,
            runtime=self._runtime,
            spec=settings.spec,
            settings=settings.backend_settings,
            limits=TableLimits(sessions=None, idle_seconds=None, hang_seconds=settings.hang_seconds),
        )
        self._edition = self._table.edition
        self._names = self._all_names()

    @property
    def names(self) -> Names:
        """The tools, by all their names."""
        if self._edition != self._table.edition:
            self._edition = self._table.edition
            self._names = self._all_names()
        return self._names

    def _all_names(self) -> Names:
        last = len(self._order)
        return Names(sorted(self._table.tools, key=lambda tool: self._order.get(tool.backend, last)))

    def names_for(self, wanted: Iterable[str]) -> Names:
        """Return the names after loading the backends that they may mean."""
        for name in wanted:
            if not self._unloaded:
                break
            backend = backend_of(name)
            if backend in self._order:
                self._load(backend)
            elif name not in self.names:
                for backend in tuple(self._unloaded):
                    self._load(backend)
        return self.names

    def _load(self, name: str) -> None:
        if name in self._unloaded:
            try:
                self._table.add(load_backend(name), cold=True)
            except ConfigurationError as error:
                raise ToolFailure(ErrorKind.UNAVAILABLE, str(error)) from None
            del self._unloaded[name]

    async def open(self) -> None:
        """Start the backends that the settings name."""
        for name in tuple(self._unloaded):
            # The set of tools may depend on the settings.
            if self._settings.backend_settings.get(name):
                self._load(name)
        discovering = [name for name, backend in self._table.backends.items() if backend.discovers]
        await self.warmup(dict.fromkeys([*self._settings.warmup_names, *discovering]))

    async def close(self) -> None:
        """End the sessions, then the backends, then release the runtime."""
        await self._table.close()
        if self._shared is not None:
            await self._shared.release()

    async def warmup(self, backends: Iterable[str]) -> None:
        """Start backends that have not started."""
        for name in backends:
            self._load(name)
            if name not in self._table.backends:
                message = f"no backend {name!r} here.{did_you_mean(name, self._table.backends)}"
                raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, message)
            await self._table.start([name])

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, object],
        *,
        session: str | None,
        timeout: float | None,
        progress: ProgressSink | None,
    ) -> ToolResult:
        """Call a tool, once."""
        return await self._table.call(
            tool.name, arguments, session=session, timeout=timeout, progress=progress
        )

    async def read(self, uri: str) -> bytes:
        """Return the target of a result's link."""
        resource = self._table.sessions.resource(uri, LOCAL)
        if resource is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, f"nothing is kept as {uri!r}, or no longer.")
        return resource.data

    async def _runtime(self) -> Runtime:
        async with self._runtime_turn:
            if self._own_runtime is not None:
                return self._own_runtime
            if self._shared is not None:
                return await self._shared.current()
            shared = shared_runtime(self._settings.runtime, self._settings.spec)
            runtime = await shared.borrow()
            self._shared = shared
            return runtime


class SharedRuntime:
    """A runtime of one event loop, with a count of its users."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self._users = 0
        self._lock = anyio.Lock()
        self._hosted: Hosted[Runtime] | None = None
        self._runtime: Runtime | None = None

    @property
    def running(self) -> bool:
        """Return whether it is started, not stopped and not dead."""
        hosted, runtime = self._hosted, self._runtime
        return hosted is not None and hosted.alive and runtime is not None and runtime.alive

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
        async with self._lock:
            if self._runtime is None or not self.running:
                if self._hosted is not None:
                    await self._hosted.close()
                self._hosted = Hosted(self._make)
                self._runtime = await self._hosted.open()
            return self._runtime

    async def release(self) -> None:
        """Release it; the last user stops it."""
        self._users -= 1
        async with self._lock:
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
