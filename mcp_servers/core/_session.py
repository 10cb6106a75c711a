"""The live state of one sandbox across its backends, with the outputs and images kept for links."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ResourceLink
from runtimes import Instance

MAX_RESOURCES = 1000
"""Maximum number of resources in a store, because each has an overhead."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kept item."""

    uri: str
    """URI to read it by."""
    name: str
    """A short name for people."""
    mime: str
    """MIME type."""
    data: bytes
    """The content."""

    @property
    def link(self) -> ResourceLink:
        """A link to it."""
        return ResourceLink(self.uri, self.name, self.mime, len(self.data))


class ResourceStore:
    """Resources up to a total size and count; the oldest are dropped first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._resources: OrderedDict[str, Resource] = OrderedDict()

    def put(self, resource: Resource) -> None:
        """Store a resource, truncated if it is larger than the whole store."""
        if len(resource.data) > self._capacity:
            resource = replace(resource, data=resource.data[: self._capacity])
        self._resources[resource.uri] = resource
        self._size += len(resource.data)
        while self._size > self._capacity or len(self._resources) > MAX_RESOURCES:
            _, oldest = self._resources.popitem(last=False)
            self._size -= len(oldest.data)

    def get(self, uri: str) -> Resource | None:
        """Return the resource, or `None` if it was dropped or never stored."""
        return self._resources.get(uri)

    def __iter__(self) -> Iterator[Resource]:
        """Iterate over all resources, oldest first."""
        return iter(tuple(self._resources.values()))

    def copy(self) -> "ResourceStore":
        """Return a store with the same resources; their bytes are shared."""
        other = ResourceStore(self._capacity)
        for resource in self:
            other.put(resource)
        return other


S = TypeVar("S")


class CallGate:
    """A shared/exclusive lock: calls enter together; `alone` waits for running calls and blocks new ones."""

    __slots__ = ("_drained", "_lock", "_opened", "running")

    def __init__(self) -> None:
        self.running = 0
        """Number of calls inside."""
        self._lock = anyio.Lock()
        self._opened: anyio.Event | None = None
        self._drained: anyio.Event | None = None

    async def enter(self) -> None:
        """Enter; waits while somebody is inside alone or waits to be. Pair with `leave`."""
        while self._opened is not None:
            await self._opened.wait()
        self.running += 1

    def leave(self) -> None:
        """Leave."""
        self.running -= 1
        if self.running == 0 and self._drained is not None:
            self._drained.set()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Wait until all have left, and keep others out inside the block."""
        async with self._lock:
            opened = self._opened = anyio.Event()
            try:
                if self.running:
                    self._drained = anyio.Event()
                    await self._drained.wait()
                yield
            finally:
                self._drained = self._opened = None
                opened.set()


class Session:
    """A session: an owner, at most one instance shared by all backends, and the state of each backend.

    Created only by `Sessions`. A tool with a parameter of this type gets the session of the call.
    """

    def __init__(
        self,
        handle: str,
        owner: str,
        *,
        start_instance: Callable[[], Awaitable[Instance]],
        settings: Mapping[str, Mapping[str, object]],
        resources: ResourceStore,
        now: float,
        expires: bool = True,
        parent: str | None = None,
    ) -> None:
        self.handle = handle
        """The name that clients use; cannot be guessed."""
        self.owner = owner
        """The principal that created it; nobody else can use it."""
        self.settings = settings
        """Settings for this session, by backend."""
        self.resources = resources
        """Resources kept for it."""
        self.parent = parent
        """Handle of the session that it was forked from."""
        self.live: dict[str, None] = {}
        """Names of the backends initialized in it, in order."""
        self.started = now
        """Start time."""
        self.used = now
        """Time of last use."""
        self.expires = expires
        """It ends after being idle for too long."""
        self.ended = False
        """It has ended or is ending."""
        self.lost = False
        """Its instance has died; the session will be ended."""
        self.gate = CallGate()
        """Lock between calls (shared) and forks (exclusive)."""
        self.turn = anyio.Lock()
        """Held while a backend is initialized."""
        self._states: dict[type, object] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._start_instance = start_instance
        self._instance: Instance | None = None
        self._instance_lock = anyio.Lock()
        self._kept = 0

    async def instance(self) -> Instance:
        """Return the session's instance; the first call starts it.

        :raises IsolationUnavailable: if this machine does not support the isolation.
        :raises ToolFailure: `unavailable` if the server has no runtime.
        """
        if self._instance is not None:
            return self._instance
        async with self._instance_lock:
            self.check_alive()
            if self._instance is None:
                await self.adopt(await self._start_instance())
            assert self._instance is not None
            return self._instance

    @property
    def current_instance(self) -> Instance | None:
        """The instance, or `None` if it has not been started."""
        return self._instance

    def put(self, state: object) -> None:
        """Store a backend's state for this session, keyed by its type."""
        self._states[type(state)] = state

    def get(self, kind: type[S]) -> S:
        """Return the state of that type.

        :raises KeyError: if there is none.
        """
        state = self._states[kind]
        assert isinstance(state, kind)
        return state

    def keep(self, name: str, mime: str, data: bytes) -> ResourceLink:
        """Keep data as a resource, so that a result can link to it (`context.show(link)`) and a client can read it.

        The total size per session is limited; the oldest resources are dropped first.
        """
        self._kept += 1
        resource = Resource(f"agentflow://{self.handle}/{self._kept}/{name}", name, mime, data)
        self.resources.put(resource)
        return resource.link

    def check_alive(self) -> None:
        """Raise if the session has ended.

        :raises ToolFailure: `session_not_found`.
        """
        if self.ended:
            raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, f"session {self.handle!r} has ended.")

    async def adopt(self, instance: Instance) -> None:
        """Take ownership of an instance that was just started or forked.

        :raises ToolFailure: `session_not_found` if the session has ended meanwhile; the instance is then stopped.
        """
        if self.ended:
            with anyio.CancelScope(shield=True):
                await instance.stop()
        self.check_alive()
        self._instance = instance

    @contextmanager
    def cancelled_at_end(self) -> Generator[None]:
        """Cancel the block when the session ends, then raise `session_not_found`."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            self.check_alive()

    def cancel_calls(self) -> None:
        """Cancel every running call."""
        for scope in tuple(self._scopes):
            scope.cancel()
