"""Tools in this process: direct calls of the tool table, without a protocol."""

from collections.abc import Iterable, Mapping, Sequence

import anyio

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox._names import Names, backend_of
from agentflow.sandbox._runtimes import SharedRuntime, shared_runtime
from agentflow.sandbox._settings import SandboxSettings
from agentflow.sandbox._tool_host import ToolHost
from mcp_servers import Backend, TableLimits, Tool, ToolResult, ToolTable, load_backend
from mcp_servers.core import LOCAL, ProgressSink, did_you_mean
from runtimes import Runtime


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
        """Create a host.

        :param unloaded: names of further backends, in the order of their tools.
        """
        super().__init__()
        self._settings = settings
        self._unloaded = dict.fromkeys(unloaded)
        self._order = {name: place for place, name in enumerate(self._unloaded)}
        self._own_runtime = runtime
        self._runtime_turn = anyio.Lock()
        self._shared: SharedRuntime | None = None
        self._table = ToolTable(
            backends,
            runtime=self._runtime,
            spec=settings.spec,
            settings=settings.backend_settings,
            limits=TableLimits(sessions=None, idle_seconds=None),
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
            await self._shared.give_back()

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
