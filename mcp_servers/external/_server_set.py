"""All mounted servers: shared ones, and those of a single session."""

import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._session import Session
from mcp_servers.external._connections import Connector, http_connector, local_connector, sandbox_connector
from mcp_servers.external._mounted_server import MountedServer
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._tools import tools_of_servers
from runtimes import Instance

if TYPE_CHECKING:
    from mcp_servers.core._tool import Tool


logger = logging.getLogger(__name__)

StartInstance = Callable[[], Awaitable[Instance]]


class ServerSet:
    """The servers of one backend."""

    def __init__(self, servers: Mapping[str, MountSettings], start_instance: StartInstance | None) -> None:
        self._mounts = {name: self._shared(name, one, start_instance) for name, one in servers.items()}
        self.tools: tuple[Tool, ...] = ()
        """Tools of all servers that could be started."""

    async def open(self) -> None:
        """Start every server concurrently and list their tools; per-session servers are stopped again.

        :raises ToolFailure: `unavailable` if a required server cannot be started.
        """
        failures: list[ToolFailure] = []

        async def start(mount: MountedServer) -> None:
            try:
                await mount.open()
            except ToolFailure as failure:
                if mount.settings.required:
                    failures.append(failure)
                else:
                    logger.warning("tools are missing: %s", failure.message)
                return
            if mount.settings.per_session:
                await mount.close()

        async with anyio.create_task_group() as group:
            for mount in self._mounts.values():
                group.start_soon(start, mount)
        if failures:
            await self.close()
            raise failures[0]
        self._learn()

    async def close(self) -> None:
        """Stop every server concurrently."""
        async with anyio.create_task_group() as group:
            for mount in self._mounts.values():
                group.start_soon(mount.close)

    def _learn(self) -> None:
        known = {
            name: (mount.settings, mount.tools)
            for name, mount in self._mounts.items()
            if mount.tools is not None
        }
        self.tools = tools_of_servers(known, self._find)

    async def _find(self, name: str, session: Session | None) -> MountedServer:
        return self._mounts[name] if session is None else await session.get(SessionServers).use(name)

    def of(self, session: Session) -> "SessionServers":
        """Return the servers of a session."""
        return SessionServers(session, self._mounts)

    def _shared(
        self, name: str, settings: MountSettings, start_instance: StartInstance | None
    ) -> MountedServer:
        async def fresh(stack: AsyncExitStack) -> Instance:
            if start_instance is None:
                message = f"mcp server {name!r}: there is no runtime to run it in."
                raise ToolFailure(ErrorKind.UNAVAILABLE, message)
            instance = await start_instance()
            stack.push_async_callback(instance.stop)
            await fill(instance, settings.workspace)
            return instance

        if settings.url is not None:
            lines: Connector = http_connector(settings)
        elif settings.runtime is not None:
            lines = sandbox_connector(name, settings, fresh)
        else:
            lines = local_connector(name, settings, settings.workspace)
        return MountedServer(name, settings, lines, on_change=self._learn)


class SessionServers:
    """The servers of one session, each started on first use, and the names of all servers it has used."""

    def __init__(self, session: Session, mounts: Mapping[str, MountedServer]) -> None:
        self._session = session
        self._mounts = mounts
        self._own: dict[str, MountedServer] = {}
        self._folders: dict[str, Path] = {}
        self._filled: set[str] = set()
        self._turn = anyio.Lock()
        self.used: set[str] = set()
        """Servers that the session has called."""

    @property
    def stateful(self) -> list[str]:
        """Used servers whose state cannot be copied."""
        return sorted(name for name in self.used if self._mounts[name].settings.keeps_state)

    async def use(self, name: str) -> MountedServer:
        """Return the server for a call of the session: its own or the shared one.

        :raises ToolFailure: `unavailable` if it cannot be started.
        """
        shared = self._mounts[name]
        if not shared.settings.per_session:
            self.used.add(name)
            return shared
        async with self._turn:
            if name not in self._own:
                lines = await self._lines(name, shared.settings)
                mount = MountedServer(name, shared.settings, lines, tools=shared.tools)
                await mount.open()
                self._own[name] = mount
            self.used.add(name)
            return self._own[name]

    async def _lines(self, name: str, settings: MountSettings) -> Connector:
        if settings.url is not None:
            return http_connector(settings)
        if settings.runtime is None:
            if settings.workspace is not None and name not in self._folders:
                self._folders[name] = await anyio.to_thread.run_sync(_copied, settings.workspace)
            return local_connector(name, settings, self._folders.get(name))

        async def ours(_: AsyncExitStack) -> Instance:
            instance = await self._session.instance()
            if name not in self._filled:
                await fill(instance, settings.workspace)
                self._filled.add(name)
            return instance

        return sandbox_connector(name, settings, ours)

    async def copy(self, session: Session) -> "SessionServers":
        """Return the servers of a fork of the session: they start again, on copies of their files."""
        copied = SessionServers(session, self._mounts)
        # The files of the instance were forked with it.
        copied._filled = set(self._filled)
        for name, folder in self._folders.items():
            copied._folders[name] = await anyio.to_thread.run_sync(_copied, folder)
        return copied

    async def close(self) -> None:
        """Stop the servers concurrently and delete the copies of their files."""
        async with anyio.create_task_group() as group:
            for mount in self._own.values():
                group.start_soon(mount.close)
        for folder in self._folders.values():
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)


async def fill(instance: Instance, folder: Path | None) -> None:
    """Copy a folder of this machine into an instance's workspace."""
    if folder is None:
        return
    for path in await anyio.to_thread.run_sync(_files_of, folder):
        data = await anyio.Path(path).read_bytes()
        runnable = bool((await anyio.Path(path).stat()).st_mode & 0o100)
        await instance.write(str(path.relative_to(folder)), data, executable=runnable)


def _files_of(folder: Path) -> list[Path]:
    # Symlinks are left out, because they may point anywhere.
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _copied(folder: Path) -> Path:
    """Copy a folder, readable by its owner only."""
    copy = Path(tempfile.mkdtemp(prefix="agentflow-mcp-"))
    shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
    return copy
