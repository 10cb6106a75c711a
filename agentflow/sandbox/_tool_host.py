"""Tools of a sandbox: all their names, the interface that calls them, and the tools of this process, called without a protocol."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import anyio
import msgspec

from agentflow.actors import Hosted
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
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

if TYPE_CHECKING:
    from agentflow.sandbox._settings import SandboxSettings

BACKEND_ALIASES: Final[Mapping[str, str]] = {
    "database": "sql",
    "doc": "document",
    "ds": "data",
    "filesystem": "files",
    "knowledge_base": "rag",
    "text2sql": "sql",
}
"""Alias of a backend -> its name. `web`, `document` and the rest have no alias."""

TOOL_ALIASES: Final[Mapping[str, str]] = {
    "browse_url": "web:visit",
    "ds_inspect_data": "data:inspect",
    "ds_read_csv": "data:read",
    "ds_run_python": "data:run",
    "execute_sql": "sql:execute",
    "get_table_schema": "sql:schema",
    "google_search": "web:search",
    "python_execute": "code:run",
    "read_document": "document:read",
    "read_file": "files:read",
    "retrieval": "rag:search",
    "search_document": "document:search",
    "text2sql_get_schema": "sql:schema",
    "wikipedia_search": "web:wikipedia",
}
"""Alias of a tool, with underscores only -> `backend:verb`; only where more than the backend differs."""

ARGUMENT_ALIASES: Final[Mapping[str, str]] = {
    "csv_file": "file",
    "db_id": "database",
    "key_words": "query",
    "max_image_num": "max_images",
    "max_rows": "rows",
    "max_search_results": "max_results",
    "max_text_token": "max_tokens",
    "seed_path": "folder",
    "table_names": "tables",
}
"""Alias of an argument -> its name, for tools that have an argument of that name and none called like the alias."""


ALIAS_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "browse_url": {"url": "urls", "query": "goal"},
    "get_table_schema": {"table": "tables", "table_name": "tables"},
    "python_execute": {"script": "code"},
    "read_document": {"file_path": "document", "path": "document"},
    "read_file": {"file_path": "path", "filename": "path"},
    "search_document": {"file_path": "document", "keywords": "query", "path": "document"},
}
"""Alias of a tool -> its documented arguments and ours."""

_PINNED: Final[Mapping[str, Mapping[str, object]]] = {"google_search": {"engine": "google"}}
"""Alias of a tool -> arguments that it implies."""

_IMPLIED: Final[Mapping[str, frozenset[str]]] = {"google_search": frozenset({"add_citations"})}
"""Alias of a tool -> documented arguments that ask for something which the tool always does."""


def argument_of(name: str, parameters: Collection[str]) -> str | None:
    """Return the argument that a name means for a tool: the name itself, the target of the alias, or `None`.

    >>> argument_of("key_words", ["query"])
    'query'
    """
    if name in parameters:
        return name
    argument = ARGUMENT_ALIASES.get(name)
    return argument if argument in parameters else None


def documented_arguments(
    name: str, parameters: Collection[str], call_arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return a call's arguments under the tool's own names, with those that the alias implies.

    An argument that is given under both names, or is unknown, is left as it is: the tool refuses it.

    :param name: the name by which the tool is called.
    :param parameters: the tool's own arguments.
    """
    alias = _plain(name)
    arguments: dict[str, object] = {}
    for argument, value in call_arguments.items():
        if argument not in parameters:
            if argument in _IMPLIED.get(alias, ()):
                continue
            own_name = ALIAS_ARGUMENTS.get(alias, {}).get(argument) or argument_of(argument, parameters)
            if own_name is not None and own_name in parameters and own_name not in call_arguments:
                argument = own_name
        arguments[argument] = value
    for argument, value in _PINNED.get(alias, {}).items():
        if argument in parameters:
            arguments.setdefault(argument, value)
    return arguments


def canonical_backend(name: str) -> str:
    """Return the backend that a name means."""
    return BACKEND_ALIASES.get(name, name)


def _as_alias(alias: str, tool: Tool) -> Tool:
    """Return a tool under an alias, without the arguments that the alias implies."""
    schema = msgspec.convert(tool.input_schema.get("properties", {}), dict[str, object])
    properties = {name: kind for name, kind in schema.items() if name not in _PINNED[alias]}
    return replace(tool, called=alias, input_schema={**tool.input_schema, "properties": properties})


_SEPARATORS: Final = str.maketrans(":-.", "___")


def _plain(name: str) -> str:
    """Normalise separators: `bash:run`, `bash-run`, `bash.run` and `bash_run` are one name."""
    return name.strip().translate(_SEPARATORS)


def backend_of(name: str) -> str:
    """Return the backend of a tool, by its name or a pattern.

    >>> backend_of("python_execute"), backend_of("sql:*")
    ('code', 'sql')
    """
    route = TOOL_ALIASES.get(_plain(name), name)
    return canonical_backend(_plain(route).partition("_")[0])


class Names:
    """Names of a set of tools: their own, aliases of tool or backend, and unambiguous verbs."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools = tuple(tools)
        """The tools, in order."""
        self._spellings: dict[str, Tool] = {_plain(tool.name): tool for tool in self.tools}
        for tool in self.tools:
            for alias, backend in BACKEND_ALIASES.items():
                if tool.backend == backend:
                    self._spellings.setdefault(_plain(f"{alias}_{tool.verb}"), tool)
        for alias, route in TOOL_ALIASES.items():
            if (tool := self._spellings.get(_plain(route))) is not None:
                self._spellings.setdefault(alias, tool)
        self._verbs: dict[str, list[Tool]] = {}
        for tool in self.tools:
            self._verbs.setdefault(_plain(tool.verb), []).append(tool)
        for verb, owners in self._verbs.items():
            if len(owners) == 1:
                self._spellings.setdefault(verb, owners[0])
        # External tools may differ in a separator only: an exact spelling finds each of them.
        self._spellings.update({exact: tool for tool in self.tools for exact in (tool.route, tool.name)})

    def __contains__(self, name: str) -> bool:
        """Return whether a tool has this full name."""
        return (tool := self._spellings.get(_plain(name))) is not None and _plain(name) == _plain(tool.name)

    def find(self, name: str) -> Tool:
        """Return the tool that a name means.

        :raises ToolFailure: `tool_not_found`, with the nearest name.
        """
        tool = self._spellings.get(name) or self._spellings.get(_plain(name))
        if tool is None:
            raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, self._explain(name))
        return tool

    def select(self, patterns: str | Sequence[str] = "*") -> list[Tool]:
        """Return the tools that one or several patterns mean: a name, an alias, a backend, or a pattern with `*` or `?`.

        :raises ToolFailure: `tool_not_found`, for a pattern without a match.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        chosen = {tool.name: tool for pattern in patterns for tool in self._matching(pattern)}
        own_tools = [tool for tool in self.tools if chosen.pop(tool.name, None) is not None]
        return [*own_tools, *chosen.values()]

    def _matching(self, pattern: str) -> Iterable[Tool]:
        if "*" in pattern or "?" in pattern:
            plain = _plain(pattern)
            matching = [tool for spelling, tool in self._spellings.items() if fnmatchcase(spelling, plain)]
            if not matching and pattern != "*":
                raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, self._explain(pattern))
            return matching
        alias = _plain(pattern)
        if alias in _PINNED and pattern not in self:
            return [_as_alias(alias, self.find(pattern))]
        backend = BACKEND_ALIASES.get(pattern, pattern)
        return [tool for tool in self.tools if tool.backend == backend] or [self.find(pattern)]

    def _explain(self, name: str) -> str:
        plain, backends = _plain(name), list(dict.fromkeys(tool.backend for tool in self.tools))
        if len(owners := self._verbs.get(plain, [])) > 1:
            return f"{name!r} may mean {' or '.join(tool.route for tool in owners)}."
        if (route := TOOL_ALIASES.get(plain)) is not None:
            return f"{name!r} means {route}, and there is no such tool here. Backends here: {', '.join(backends)}."
        family, _, verb = name.partition(":")
        if verb and (backend := BACKEND_ALIASES.get(family, family)) not in backends:
            return f"no backend {backend!r} here, for {name!r}.{did_you_mean(backend, backends)}"
        return f"no tool {name!r}.{did_you_mean(name, [tool.route for tool in self.tools])}"


class ToolHost(ABC):
    """Access to a tool table. A sandbox and its forks share one host; the last of them closes it."""

    def __init__(self) -> None:
        self._holders = 0

    @property
    @abstractmethod
    def names(self) -> Names:
        """The tools, by all their names; known once the host is open."""

    def names_for(self, patterns: Iterable[str]) -> Names:
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
        settings: "SandboxSettings",
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
        self._runtime_lock = anyio.Lock()
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

    def names_for(self, patterns: Iterable[str]) -> Names:
        """Return the names after loading the backends that they may mean."""
        for name in patterns:
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
            raise ToolFailure(ErrorKind.NOT_FOUND, f"no result named {uri!r}; it may have expired.")
        return resource.data

    async def _runtime(self) -> Runtime:
        async with self._runtime_lock:
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
