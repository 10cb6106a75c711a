"""All sessions of a tool table: start, fork, end, list, expire."""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio

from agentflow.errors import CannotFork, ErrorKind, RuntimeFailure, ToolFailure
from mcp_servers.core._archive import Archive
from mcp_servers.core._backend import Backend
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._resource_store import Resource, ResourceStore
from mcp_servers.core._session import Session
from runtimes import MIB, Instance, Snapshot

__all__ = ["DefaultSession", "Sessions", "TableLimits", "new_handle"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Limits of a tool table and its sessions. `None`: no limit of that kind."""

    sessions: int | None = 1024
    """Sessions alive at once; one more is refused as `busy`."""
    idle_seconds: float | None = 1800.0
    """A session that nobody uses ends after this long (where expiry runs: on servers)."""
    call_seconds: float | None = None
    """The longest that any call may take, whatever it asks for."""
    kept_bytes: int = 32 * MIB
    """Whole outputs and pictures kept per session."""
    end_seconds: float = 10.0
    """Time for each backend of a session to clean up when it ends, and for its instance to stop."""


def new_handle() -> str:
    """A handle that can't be guessed."""
    return f"session-{secrets.token_hex(12)}"


class Sessions:
    """The sessions of one table. A session is visible only to the principal that made it."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        start_instance: Callable[[Mapping[str, str]], Awaitable[Instance]],
        limits: TableLimits,
        settings: Mapping[str, Mapping[str, object]],
        clock: Callable[[], float] = time.monotonic,
        handles: Callable[[], str] = new_handle,
        warm_up: Callable[[Backend], Awaitable[None]],
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
        self._closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, handle: str, principal: str) -> Session:
        """The session of that handle.

        :raises ToolFailure: `session_not_found`, the same for an unknown, an ended and another principal's one.
        """
        session = self._sessions.get(handle)
        if session is None or session.owner != principal:
            message = f"no session {handle!r}: it is unknown or has ended. session_start makes a new one."
            raise ToolFailure(ErrorKind.SESSION_NOT_FOUND, message)
        self.touch(session)
        return session

    def touch(self, session: Session) -> None:
        """It is used now."""
        session.used = self._clock()

    def list(self, principal: str) -> list[Session]:
        """The principal's sessions, oldest first."""
        return [session for session in self._sessions.values() if session.owner == principal]

    def idle_seconds(self, session: Session) -> float:
        """How long nobody has used it."""
        return 0.0 if session.gate.running else self._clock() - session.used

    def age_seconds(self, session: Session) -> float:
        """How long it has lived."""
        return self._clock() - session.started

    def resource(self, uri: str, principal: str) -> Resource | None:
        """Something kept by one of the principal's sessions."""
        found = (
            session.resources.get(uri) for session in self._sessions.values() if session.owner == principal
        )
        return next((resource for resource in found if resource is not None), None)

    def resources(self, principal: str) -> tuple[Resource, ...]:
        """All that the principal's sessions keep; what forks share with their parents once."""
        mine = [session for session in self._sessions.values() if session.owner == principal]
        return tuple({kept.uri: kept for session in mine for kept in session.resources}.values())

    async def start(
        self,
        principal: str,
        *,
        backends: Iterable[str] = (),
        settings: Mapping[str, Mapping[str, object]] | None = None,
        files_of: str | None = None,
        expires: bool = True,
    ) -> Session:
        """A new session; the named backends are live when this returns, the others become so at first use.

        :param files_of: the handle of a session that has ended: this one begins with its files.
        :raises ToolFailure: `busy` at the limit, `bad_arguments` for an unknown backend, `not_found` where those files
            are not kept.
        """
        wanted: dict[str, None] = dict.fromkeys([*backends, *(settings or {})])
        for name in wanted:
            self._backend(name)
        files = None if files_of is None else await self._kept_files(files_of, principal)
        session = self._add(principal, settings or {}, expires=expires)
        try:
            if files is not None:
                await (await session.instance()).restore(files)
            await self._make_all_live(session, wanted)
        except BaseException:
            await self.end(session)
            raise
        return session

    async def _kept_files(self, handle: str, principal: str) -> Snapshot:
        if self._archive is None:
            message = "this server keeps no files of sessions that have ended: sessions.archive.folder says where it may."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        files = await self._archive.find(handle, principal)
        if files is None:
            message = f"no files of a session {handle!r} are kept: it is unknown, still lives, had none, or made room."
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

    async def make_live(self, session: Session, backend: Backend) -> None:
        """Initialize the backend in the session, once; warm it up first if nobody has."""
        await self._warm_up(backend)
        async with session.turn:
            session.check_alive()
            if backend.name in session.live:
                return
            own = self._asked(session, backend)
            await backend.initialize(session, {**self._settings.get(backend.name, {}), **own})
            session.live[backend.name] = None

    @staticmethod
    def _asked(session: Session, backend: Backend) -> Mapping[str, object]:
        own = session.settings.get(backend.name, {})
        for name in sorted(backend.reserved.intersection(own)):
            message = f"setting {name!r} of {backend.name} is the server's own: no session can give it."
            raise ToolFailure(ErrorKind.DENIED, message)
        return own

    async def _start_instance_of(self, session: Session) -> Instance:
        mounts: dict[str, str] = {}
        for name, backend in self._backends.items():
            mounts |= backend.mounts(self._settings.get(name, {}), self._asked(session, backend))
        return await self._start_instance(mounts)

    async def add(self, session: Session, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Make backends live in a running session, each with its settings; with new ones it begins anew.

        :raises ToolFailure: `bad_arguments` for an unknown backend.
        """
        for name in settings:
            self._backend(name)
        given = {name: own for name, own in settings.items() if own}
        await self.remove(session, [name for name in given if name in session.live])
        before = {name: session.settings.get(name, {}) for name in given}
        session.settings = {**session.settings, **given}
        try:
            await self._make_all_live(session, settings)
        except BaseException:
            # A backend must not stay broken by settings that it refused.
            session.settings = {**session.settings, **before}
            raise

    async def remove(self, session: Session, backends: Iterable[str]) -> None:
        """Clean backends up in a running session, after its running calls; a later call makes them live anew."""
        names = [name for name in backends if name in session.live]
        if not names:
            return
        async with session.gate.alone():
            for name in names:
                del session.live[name]
                await self._clean(session, self._backends[name])

    async def fork(self, session: Session) -> tuple[Session, tuple[str, ...]]:
        """An independent copy that belongs to the same principal, and what could not be carried.

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
        """End it: its calls are cancelled, its backends clean up, its instance stops. Fine if it has ended."""
        if session.ended:
            return
        session.ended = True
        self._sessions.pop(session.handle, None)
        session.cancel_calls()
        # Shielded: what has begun to end ends, or its processes and files would stay behind.
        with anyio.CancelScope(shield=True):
            async with session.gate.alone():
                for name in reversed(session.live):
                    await self._clean(session, self._backends[name])
                await self._stop_instance(session)

    async def close(self) -> None:
        """End every session, all at once, and start no more."""
        self._closed = True
        async with anyio.create_task_group() as group:
            for session in tuple(self._sessions.values()):
                group.start_soon(self.end, session)

    async def expire(self) -> int:
        """End those that have been idle for too long; say how many."""
        limit = self._limits.idle_seconds
        if limit is None:
            return 0
        idle = [one for one in self._sessions.values() if one.expires and self.idle_seconds(one) >= limit]
        async with anyio.create_task_group() as group:
            for session in idle:
                group.start_soon(self.end, session)
        return len(idle)

    def _backend(self, name: str) -> Backend:
        backend = self._backends.get(name)
        if backend is None:
            message = f"no backend {name!r}.{did_you_mean(name, self._backends)}"
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
            raise ToolFailure(ErrorKind.UNAVAILABLE, "the server is stopping: it starts no more sessions.")
        limit = self._limits.sessions
        if limit is not None and len(self._sessions) >= limit:
            message = f"all {limit} sessions are taken: end one with session_end, or try again later."
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
        with anyio.move_on_after(self._limits.end_seconds):
            await self._keep_files(session, instance)
        with anyio.move_on_after(self._limits.end_seconds) as scope:
            await instance.stop()
        if scope.cancelled_caught:
            logger.error("the instance of %s did not stop in time; it ends with its runtime", session.owner)

    async def _keep_files(self, session: Session, instance: Instance) -> None:
        if self._archive is None or session.lost:
            return
        try:
            await self._archive.keep(session.handle, session.owner, await instance.snapshot())
        except (RuntimeFailure, OSError):  # the session ends all the same
            logger.exception("the files of a session of %s could not be kept", session.owner)

    async def _clean(self, session: Session, backend: Backend) -> None:
        with anyio.move_on_after(self._limits.end_seconds):
            try:
                await backend.cleanup(session)
            except Exception:  # boundary: one backend's trouble must not keep the others from cleaning up
                logger.exception("backend %s failed to clean up", backend.name)


class DefaultSession:
    """The session of a caller that names none: started at first need, ended with the caller's connection."""

    def __init__(self, sessions: Sessions, principal: str) -> None:
        self._sessions = sessions
        self._principal = principal
        self._session: Session | None = None
        self._turn = anyio.Lock()

    async def get(self) -> Session:
        """The session; a new one when there is none yet, or the last one was ended."""
        if self._session is not None and not self._session.ended:
            return self._session
        async with self._turn:
            if self._session is None or self._session.ended:
                self._session = await self._sessions.start(self._principal, expires=False)
            return self._session

    async def close(self) -> None:
        """End it."""
        if self._session is not None:
            await self._sessions.end(self._session)
