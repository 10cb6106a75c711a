"""The live state of one sandbox over its backends."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ResourceLink
from mcp_servers.core._resource_store import Resource, ResourceStore
from runtimes import Instance

__all__ = ["CallGate", "Session"]

S = TypeVar("S")


class CallGate:
    """Counts the calls that run, and lets one visitor in alone: after those that run, before those that come."""

    __slots__ = ("_drained", "_opened", "_turn", "running")

    def __init__(self) -> None:
        self.running = 0
        """Calls inside now."""
        self._turn = anyio.Lock()
        self._opened: anyio.Event | None = None
        self._drained: anyio.Event | None = None

    async def enter(self) -> None:
        """Go in; waits while somebody is, or waits to be, alone. Follow by `leave`."""
        while self._opened is not None:
            await self._opened.wait()
        self.running += 1

    def leave(self) -> None:
        """Go out."""
        self.running -= 1
        if self.running == 0 and self._drained is not None:
            self._drained.set()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Wait until all have left, and keep others out meanwhile."""
        async with self._turn:
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
    """One session: an owner, at most one instance shared by all backends, and each backend's state.

    Made by `Sessions` only.
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
        """What clients name it by; can't be guessed."""
        self.owner = owner
        """The principal that made it; nobody else can use it."""
        self.settings = settings
        """Settings for this session, by backend."""
        self.resources = resources
        """What is kept for it."""
        self.parent = parent
        """The handle of the session that it was forked from."""
        self.live: dict[str, None] = {}
        """Names of the backends that are initialized in it, in that order."""
        self.started = now
        """When it began."""
        self.used = now
        """When it was last used."""
        self.expires = expires
        """It ends when it has been idle for long."""
        self.ended = False
        """It has ended, or is ending."""
        self.lost = False
        """Its instance has died; it is to be ended."""
        self.gate = CallGate()
        """Calls pass together, a fork alone."""
        self.turn = anyio.Lock()
        """Held while a backend is made live."""
        self._states: dict[type, object] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._start_instance = start_instance
        self._instance: Instance | None = None
        self._instance_turn = anyio.Lock()
        self._kept = 0

    async def instance(self) -> Instance:
        """The one instance of this session; started at first need.

        :raises IsolationUnavailable: if this machine can't isolate it.
        :raises ToolFailure: `unavailable`, if the server has no runtime.
        """
        if self._instance is not None:
            return self._instance
        async with self._instance_turn:
            self.check_alive()
            if self._instance is None:
                await self.adopt(await self._start_instance())
            assert self._instance is not None
            return self._instance

    @property
    def current_instance(self) -> Instance | None:
        """The instance, if it has been started."""
        return self._instance

    def put(self, state: object) -> None:
        """Keep a backend's state for this session. One state of each type: use a type of your own."""
        self._states[type(state)] = state

    def get(self, kind: type[S]) -> S:
        """The state of that type.

        :raises KeyError: if none was put.
        """
        state = self._states[kind]
        assert isinstance(state, kind)
        return state

    def keep(self, name: str, mime: str, data: bytes) -> ResourceLink:
        """Keep something whole, so that the result can link to it (`context.show(link)`) and a client read it.

        A session keeps a bounded number of bytes; the oldest make room.
        """
        self._kept += 1
        uri = f"agentflow://{self.handle}/{self._kept}/{name}"
        self.resources.put(Resource(uri, name, mime, data))
        return ResourceLink(uri, name, mime, len(data))

    def check_alive(self) -> None:
        """:raises ToolFailure: `session_not_found`, if it has ended."""
        if self.ended:
            raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, f"session {self.handle!r} has ended.")

    async def adopt(self, instance: Instance) -> None:
        """Take over an instance that was just started or forked.

        :raises ToolFailure: `session_not_found`, if the session has ended meanwhile; then the instance is stopped.
        """
        if self.ended:
            with anyio.CancelScope(shield=True):
                await instance.stop()
        self.check_alive()
        self._instance = instance

    @contextmanager
    def cancelled_at_end(self) -> Generator[None]:
        """Cancel what is inside when the session ends; then raise `session_not_found`."""
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
