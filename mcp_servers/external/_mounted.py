"""All mounted servers: those for everybody, and those that each session has alone."""

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
from mcp_servers.external._line import Lines, by_address, in_instance, on_this_machine
from mcp_servers.external._mount import Mount
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._tools import tools_of_servers
from runtimes import Instance

if TYPE_CHECKING:
    from mcp_servers.core._tool import Tool

__all__ = ["Mounted", "OwnServers"]

logger = logging.getLogger(__name__)

StartInstance = Callable[[], Awaitable[Instance]]


class Mounted:
    """The servers of one backend."""

    def __init__(self, servers: Mapping[str, MountSettings], start_instance: StartInstance | None) -> None:
        self._mounts = {name: self._shared(name, one, start_instance) for name, one in servers.items()}
        self.tools: tuple[Tool, ...] = ()
        """The tools of all servers that could be started."""

    async def open(self) -> None:
        """Start every server, all at once, and learn their tools; those that sessions have alone end again.

        :raises ToolFailure: `unavailable`, if one that is required can't be started.
        """
        failures: list[ToolFailure] = []

        async def start(mount: Mount) -> None:
            try:
                await mount.open()
            except ToolFailure as failure:
                if mount.settings.required:
                    failures.append(failure)
                else:
                    logger.warning("its tools are missing: %s", failure.message)
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
        """End every server, all at once."""
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

    async def _find(self, name: str, session: Session | None) -> Mount:
        return self._mounts[name] if session is None else await session.get(OwnServers).use(name)

    def of(self, session: Session) -> "OwnServers":
        """What a session gets."""
        return OwnServers(session, self._mounts)

    def _shared(self, name: str, settings: MountSettings, start_instance: StartInstance | None) -> Mount:
        async def fresh(stack: AsyncExitStack) -> Instance:
            if start_instance is None:
                message = f"mcp server {name!r}: there is no runtime here for it to run in."
                raise ToolFailure(ErrorKind.UNAVAILABLE, message)
            instance = await start_instance()
            stack.push_async_callback(instance.stop)
            await fill(instance, settings.workspace)
            return instance

        if settings.url is not None:
            lines: Lines = by_address(settings)
        elif settings.runtime is not None:
            lines = in_instance(name, settings, fresh)
        else:
            lines = on_this_machine(name, settings, settings.workspace)
        return Mount(name, settings, lines, on_change=self._learn)


class OwnServers:
    """The servers that one session has alone, each started at its first use, and which of all it has used."""

    def __init__(self, session: Session, mounts: Mapping[str, Mount]) -> None:
        self._session = session
        self._mounts = mounts
        self._own: dict[str, Mount] = {}
        self._folders: dict[str, Path] = {}
        self._filled: set[str] = set()
        self._turn = anyio.Lock()
        self.used: set[str] = set()
        """The servers that the session has called."""

    @property
    def stateful(self) -> list[str]:
        """Those used whose state can't be copied."""
        return sorted(name for name in self.used if self._mounts[name].settings.keeps_state)

    async def use(self, name: str) -> Mount:
        """The server for a call of the session: its own, or the one for all.

        :raises ToolFailure: `unavailable`, if it can't be started.
        """
        shared = self._mounts[name]
        if not shared.settings.per_session:
            self.used.add(name)
            return shared
        async with self._turn:
            if name not in self._own:
                lines = await self._lines(name, shared.settings)
                mount = Mount(name, shared.settings, lines, tools=shared.tools)
                await mount.open()
                self._own[name] = mount
            self.used.add(name)
            return self._own[name]

    async def _lines(self, name: str, settings: MountSettings) -> Lines:
        if settings.url is not None:
            return by_address(settings)
        if settings.runtime is None:
            if settings.workspace is not None and name not in self._folders:
                self._folders[name] = await anyio.to_thread.run_sync(_copied, settings.workspace)
            return on_this_machine(name, settings, self._folders.get(name))

        async def ours(_: AsyncExitStack) -> Instance:
            instance = await self._session.instance()
            if name not in self._filled:
                await fill(instance, settings.workspace)
                self._filled.add(name)
            return instance

        return in_instance(name, settings, ours)

    async def copy(self, session: Session) -> "OwnServers":
        """The same for a fork of the session: its servers start anew, on copies of their files."""
        copied = OwnServers(session, self._mounts)
        # The files of the instance were forked with it.
        copied._filled = set(self._filled)
        for name, folder in self._folders.items():
            copied._folders[name] = await anyio.to_thread.run_sync(_copied, folder)
        return copied

    async def close(self) -> None:
        """End them, all at once; the copies of their files are removed."""
        async with anyio.create_task_group() as group:
            for mount in self._own.values():
                group.start_soon(mount.close)
        for folder in self._folders.values():
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)


async def fill(instance: Instance, folder: Path | None) -> None:
    """Copy the files of a folder of this machine into an instance's workspace."""
    if folder is None:
        return
    for path in await anyio.to_thread.run_sync(_files_of, folder):
        data = await anyio.Path(path).read_bytes()
        runnable = bool((await anyio.Path(path).stat()).st_mode & 0o100)
        await instance.write(str(path.relative_to(folder)), data, executable=runnable)


def _files_of(folder: Path) -> list[Path]:
    # Links are left out: they may lead anywhere.
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _copied(folder: Path) -> Path:
    """A copy of a folder, as its owner's alone."""
    copy = Path(tempfile.mkdtemp(prefix="agentflow-mcp-"))
    shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
    return copy
