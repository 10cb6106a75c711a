"""Sessions: the live state of one sandbox across its backends, and the sessions of a tool table."""

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, TypeVar

import anyio

from agentflow.errors import CannotFork, ErrorKind, RuntimeFailure, ToolFailure
from mcp_servers.core._archive import Archive
from mcp_servers.core._call import HANG_SECONDS, ResourceLink
from mcp_servers.core._failures import did_you_mean, quoted
from mcp_servers.core._shares import ClientQuota, Shares
from runtimes import MIB, Instance

if TYPE_CHECKING:
    from mcp_servers.core._backend import Backend

logger = logging.getLogger(__name__)


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
        """The principal that created it; only this one can use it."""
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
        self.live_lock = anyio.Lock()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Limits of a tool table and its sessions. `None`: no limit."""

    sessions: int | None = 1024
    """Maximum number of live sessions; one more is refused as `busy`."""
    idle_seconds: float | None = 1800.0
    """Idle time after which a session ends (on servers, which run expiry)."""
    call_seconds: float | None = None
    """Maximum duration of any call, whatever it asks for."""
    hang_seconds: float | None = HANG_SECONDS
    """Time that a tool has for a call without a time limit, beyond that of its program (`timeout`, `wall_seconds`)."""
    kept_bytes: int = 32 * MIB
    """Maximum bytes of outputs and images kept per session."""
    end_seconds: float = 10.0
    """Time for each backend of an ending session to clean up, and for its instance to stop."""
    clients: Mapping[str, ClientQuota] = field(default_factory=dict[str, ClientQuota])
    """Clients among whom the sessions are divided, each with its quota."""


def new_handle() -> str:
    """Return a random session handle that cannot be guessed."""
    return f"session-{secrets.token_hex(12)}"


class Sessions:
    """The sessions of one table. A session is visible only to the principal that created it."""

    def __init__(
        self,
        backends: "Mapping[str, Backend]",
        *,
        start_instance: Callable[[Mapping[str, str]], Awaitable[Instance]],
        limits: TableLimits,
        settings: Mapping[str, Mapping[str, object]],
        clock: Callable[[], float] = time.monotonic,
        handles: Callable[[], str] = new_handle,
        warm_up: "Callable[[Backend], Awaitable[None]]",
        archive: Archive | None = None,
    ) -> None:
        self._backends = backends
        self._warm_up = warm_up
        self._start_instance = start_instance
        self._limits = limits
        self._settings = settings
        self._clock = clock
        self._handles = handles
        self._archive = archive
        self._sessions: dict[str, Session] = {}
        quotas = {client: quota.sessions for client, quota in limits.clients.items()}
        self._shares = Shares(limits.sessions, quotas)
        self._results: dict[str, _KeptResults] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, handle: str, principal: str) -> Session:
        """Return the session of that handle.

        :raises ToolFailure: `session_not_found`, also for a session of another principal.
        """
        session = self._sessions.get(handle)
        if session is None or session.owner != principal:
            message = f"no session {quoted(handle)}: it is unknown or has ended. Start a new one with session_start."
            raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, message)
        self.touch(session)
        return session

    def full(self, principal: str) -> bool:
        """Return true if the principal can start no more sessions."""
        return self._shares.full(principal) is not None

    def touch(self, session: Session) -> None:
        """Record that the session was used now."""
        session.used = self._clock()

    def list(self, principal: str) -> list[Session]:
        """Return the principal's sessions, oldest first."""
        return [session for session in self._sessions.values() if session.owner == principal]

    def idle_seconds(self, session: Session) -> float:
        """Return the seconds since the session's last use; 0 while a call runs."""
        return 0.0 if session.gate.running else self._clock() - session.used

    def age_seconds(self, session: Session) -> float:
        """Return the seconds since the session started."""
        return self._clock() - session.started

    def resource(self, uri: str, principal: str) -> Resource | None:
        """Return a resource kept by one of the principal's sessions, or `None`."""
        candidates = (store.get(uri) for store in self._stores(principal))
        return next((resource for resource in candidates if resource is not None), None)

    def links(self, principal: str) -> tuple[ResourceLink, ...]:
        """Return links to the resources of the principal's sessions; a resource shared by forks appears once."""
        resources = {resource.uri: resource for store in self._stores(principal) for resource in store}
        return tuple(resource.link for resource in resources.values())

    def keep(self, principal: str, name: str, mime: str, data: bytes) -> ResourceLink:
        """Keep a part of a result that its client cannot receive; the oldest are dropped beyond `kept_bytes` per principal.

        Data that a session keeps already is linked there. A part is never truncated.
        """
        for store in self._stores(principal):
            for resource in store:
                if resource.data is data:
                    return resource.link
        results = self._results.get(principal)
        if results is None:
            results = self._results[principal] = _KeptResults(
                self._handles(), ResourceStore(self._limits.kept_bytes)
            )
        if len(data) > self._limits.kept_bytes:
            # Kept alone rather than truncated.
            results.resources = ResourceStore(len(data))
        results.count += 1
        resource = Resource(f"agentflow://{results.handle}/{results.count}/{name}", name, mime, data)
        results.resources.put(resource)
        return resource.link

    def _stores(self, principal: str) -> Sequence[ResourceStore]:
        stores = [session.resources for session in self.list(principal)]
        results = self._results.get(principal)
        return stores if results is None else [*stores, results.resources]

    async def start(
        self,
        principal: str,
        *,
        backends: Iterable[str] = (),
        settings: Mapping[str, Mapping[str, object]] | None = None,
        files_of: str | None = None,
        expires: bool = True,
    ) -> Session:
        """Start a session; the named backends are live on return, the others become live on first use.

        :param files_of: handle of an ended session whose files the new one starts with.
        :raises ToolFailure: `busy` at the limit, `bad_arguments` for an unknown backend, `not_found` if those files were
            not kept.
        """
        live_backends: dict[str, None] = dict.fromkeys([*backends, *(settings or {})])
        for name in live_backends:
            self._backend(name)
        with ExitStack() as opened:
            files = None if files_of is None else await self._kept_files(files_of, principal)
            if files is not None:
                opened.enter_context(files)
            session = self._add(principal, settings or {}, expires=expires)
            try:
                if files is not None:
                    await self._load(session, files)
                await self._make_all_live(session, live_backends)
            except BaseException:
                await self.end(session)
                raise
        return session

    @staticmethod
    async def _load(session: Session, files: IO[bytes]) -> None:
        try:
            await (await session.instance()).load(files)
        except ValueError as error:
            raise ToolFailure(ErrorKind.FAILED, f"the kept files cannot be restored: {error}.") from error

    async def _kept_files(self, handle: str, principal: str) -> IO[bytes]:
        if self._archive is None:
            message = "this server keeps no files of ended sessions: set sessions.archive.folder or sessions.archive.url."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        files = await self._archive.find(handle, principal)
        if files is None:
            message = f"no files of a session {quoted(handle)} are kept: it is unknown, still live, had no files, or was dropped from the archive."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return files

    async def _make_all_live(self, session: Session, backends: Iterable[str]) -> None:
        await session.gate.enter()
        try:
            with session.cancelled_at_end():
                for name in backends:
                    await self.make_live(session, self._backend(name))
        finally:
            session.gate.leave()

    async def make_live(self, session: Session, backend: "Backend") -> None:
        """Initialize the backend in the session, once, after warming it up if necessary."""
        await self._warm_up(backend)
        async with session.live_lock:
            session.check_alive()
            if backend.name in session.live:
                return
            settings = self._session_settings(session, backend)
            await backend.initialize(session, {**self._settings.get(backend.name, {}), **settings})
            session.live[backend.name] = None

    @staticmethod
    def _session_settings(session: Session, backend: "Backend") -> Mapping[str, object]:
        settings = session.settings.get(backend.name, {})
        for name in sorted(backend.reserved.intersection(settings)):
            message = f"setting {name!r} of {backend.name} can only be set by the server, not by a session."
            raise ToolFailure(ErrorKind.DENIED, message)
        return settings

    async def _start_instance_of(self, session: Session) -> Instance:
        mounts: dict[str, str] = {}
        for name, backend in self._backends.items():
            mounts |= backend.mounts(self._settings.get(name, {}), self._session_settings(session, backend))
        return await self._start_instance(mounts)

    async def add(self, session: Session, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Make backends live in a running session; one with new settings is restarted.

        :raises ToolFailure: `bad_arguments` for an unknown backend.
        """
        for name in settings:
            self._backend(name)
        changed = {name: options for name, options in settings.items() if options}
        await self.remove(session, [name for name in changed if name in session.live])
        before = {name: session.settings.get(name, {}) for name in changed}
        session.settings = {**session.settings, **changed}
        try:
            await self._make_all_live(session, settings)
        except BaseException:
            # Settings that a backend refused must not stay in force.
            session.settings = {**session.settings, **before}
            raise

    async def remove(self, session: Session, backends: Iterable[str]) -> None:
        """Clean backends up in a running session, after its running calls; a later call initializes them again."""
        names = [name for name in backends if name in session.live]
        if not names:
            return
        async with session.gate.alone():
            for name in names:
                del session.live[name]
                await self._clean(session, self._backends[name])

    async def fork(self, session: Session) -> tuple[Session, tuple[str, ...]]:
        """Return an independent copy that belongs to the same principal, and one line for each thing that was not copied.

        Waits for the calls that run in the session.

        :raises ToolFailure: `cannot_fork`, `busy` at the limit of sessions.
        """
        async with session.gate.alone():
            session.check_alive()
            forked = self._add(session.owner, session.settings, expires=session.expires, parent=session)
            try:
                left_behind = await self._fork_instance(session, forked)
                for name in session.live:
                    left_behind += await self._backends[name].fork(session, forked) or ()
                    forked.live[name] = None
                forked.check_alive()
            except BaseException:
                await self.end(forked)
                raise
        self.touch(session)
        return forked, left_behind

    async def end(self, session: Session) -> None:
        """End a session: cancel its calls, clean its backends up, stop its instance. Does nothing if it has ended."""
        if session.ended:
            return
        session.ended = True
        if self._sessions.pop(session.handle, None) is not None:
            self._shares.give(session.owner)
        session.cancel_calls()
        # Shielded: an interrupted cleanup would leave processes and files behind.
        with anyio.CancelScope(shield=True):
            async with session.gate.alone():
                for name in reversed(session.live):
                    await self._clean(session, self._backends[name])
                await self._stop_instance(session)

    async def close(self) -> None:
        """End all sessions concurrently, and start no more."""
        self._closed = True
        async with anyio.create_task_group() as group:
            for session in tuple(self._sessions.values()):
                group.start_soon(self.end, session)

    async def expire(self) -> int:
        """End the sessions that have been idle for too long; return their number."""
        limit = self._limits.idle_seconds
        if limit is None:
            return 0
        sessions = self._sessions.values()
        idle = [session for session in sessions if session.expires and self.idle_seconds(session) >= limit]
        async with anyio.create_task_group() as group:
            for session in idle:
                group.start_soon(self.end, session)
        return len(idle)

    def _backend(self, name: str) -> "Backend":
        backend = self._backends.get(name)
        if backend is None:
            message = f"no backend {quoted(name)}.{did_you_mean(name, self._backends)}"
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        return backend

    def _add(
        self,
        owner: str,
        settings: Mapping[str, Mapping[str, object]],
        *,
        expires: bool,
        parent: Session | None = None,
    ) -> Session:
        if self._closed:
            raise ToolFailure(ErrorKind.UNAVAILABLE, "the server is stopping and starts no more sessions.")
        limit = self._shares.full(owner)
        if limit is not None:
            message = f"all {limit} sessions are in use: end one with session_end, or try again later."
            raise ToolFailure(ErrorKind.BUSY, message)

        async def start_instance() -> Instance:
            return await self._start_instance_of(session)

        session = Session(
            self._handles(),
            owner,
            start_instance=start_instance,
            settings=settings,
            resources=parent.resources.copy() if parent else ResourceStore(self._limits.kept_bytes),
            now=self._clock(),
            expires=expires,
            parent=parent.handle if parent else None,
        )
        self._sessions[session.handle] = session
        self._shares.take(owner)
        return session

    async def _fork_instance(self, session: Session, forked: Session) -> tuple[str, ...]:
        if session.current_instance is None:
            return ()
        try:
            fork = await session.current_instance.fork()
        except CannotFork as error:
            raise ToolFailure(ErrorKind.CANNOT_FORK, str(error)) from error
        await forked.adopt(fork.instance)
        return fork.left_behind

    async def _stop_instance(self, session: Session) -> None:
        instance = session.current_instance
        if instance is None:
            return
        await self._keep_files(session, instance)
        with anyio.move_on_after(self._limits.end_seconds) as scope:
            await instance.stop()
        if scope.cancelled_caught:
            logger.error("the instance of %s did not stop in time; its runtime will stop it", session.owner)

    async def _keep_files(self, session: Session, instance: Instance) -> None:
        if self._archive is None or session.lost:
            return
        with anyio.move_on_after(self._limits.end_seconds + self._archive.upload_seconds) as scope:
            try:
                await self._archive.keep(session.handle, session.owner, instance)
            except (RuntimeFailure, ToolFailure, OSError) as error:  # the session ends regardless
                logger.error("cannot keep the files of a session of %s: %s", session.owner, error)
        if scope.cancelled_caught:
            logger.error("cannot keep the files of a session of %s: it took too long", session.owner)

    async def _clean(self, session: Session, backend: "Backend") -> None:
        with anyio.move_on_after(self._limits.end_seconds):
            try:
                await backend.cleanup(session)
            except Exception:  # boundary: a failing backend must not keep the others from cleaning up
                logger.exception("backend %s failed to clean up", backend.name)


@dataclass(slots=True)
class _KeptResults:
    """Parts of results kept for one principal."""

    handle: str
    """Names them in URIs, like the handle of a session."""
    resources: ResourceStore
    """The parts."""
    count: int = 0
    """Number of parts kept so far."""


class DefaultSession:
    """The session of a client that names none: started on first use, ended with the client's connection."""

    def __init__(self, sessions: Sessions, principal: str) -> None:
        self._sessions = sessions
        self._principal = principal
        self._session: Session | None = None
        self._lock = anyio.Lock()

    async def get(self) -> Session:
        """Return the session; start one if there is none or the last one has ended."""
        if self._session is not None and not self._session.ended:
            return self._session
        async with self._lock:
            if self._session is None or self._session.ended:
                self._session = await self._sessions.start(self._principal, expires=False)
            return self._session

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._sessions.end(self._session)
