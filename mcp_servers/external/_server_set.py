"""All mounted servers, shared ones and those of a single session, and their tools as tools of the backend."""

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import mcp_types as types

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import SESSION_ARGUMENT, SESSION_SCHEMA, Hints, Tool, as_object
from mcp_servers.external._connections import Connector, connect
from mcp_servers.external._content import MAX_TITLE, ContentPresenter, clean, clean_schema, data_of, one_line
from mcp_servers.external._mounted_server import MountedServer
from mcp_servers.external._schema_checker import checker_of
from mcp_servers.external._settings import MountSettings
from runtimes import Instance

MAX_NAME = 64
"""Maximum length of OpenAI-style function names, which may contain letters, digits, `_` and `-`."""

MAX_SCHEMA_BYTES = 256 * 1024

logger = logging.getLogger(__name__)

StartInstance = Callable[[], Awaitable[Instance]]


class ServerSet:
    """The servers of one backend."""

    def __init__(self, servers: Mapping[str, MountSettings], start_instance: StartInstance | None) -> None:
        self._mounts = {name: self._shared(name, mount, start_instance) for name, mount in servers.items()}
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
        started = {
            name: (mount.settings, mount.tools)
            for name, mount in self._mounts.items()
            if mount.tools is not None
        }
        self.tools = tools_of_servers(started, self._find)

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

        lines = partial(connect, name, settings, settings.workspace, fresh)
        return MountedServer(name, settings, lines, on_change=self._learn)


class SessionServers:
    """The servers of one session, each started on first use, and the names of all servers it has used."""

    def __init__(self, session: Session, mounts: Mapping[str, MountedServer]) -> None:
        self._session = session
        self._mounts = mounts
        self._session_mounts: dict[str, MountedServer] = {}
        self._folders: dict[str, Path] = {}
        self._filled: set[str] = set()
        self._lock = anyio.Lock()
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
        async with self._lock:
            if name not in self._session_mounts:
                lines = await self._lines(name, shared.settings)
                mount = MountedServer(name, shared.settings, lines, tools=shared.tools)
                await mount.open()
                self._session_mounts[name] = mount
            self.used.add(name)
            return self._session_mounts[name]

    async def _lines(self, name: str, settings: MountSettings) -> Connector:
        if settings.runtime is None and settings.workspace is not None and name not in self._folders:
            self._folders[name] = await anyio.to_thread.run_sync(_copied, settings.workspace)

        async def ours(_: AsyncExitStack) -> Instance:
            instance = await self._session.instance()
            if name not in self._filled:
                await fill(instance, settings.workspace)
                self._filled.add(name)
            return instance

        return partial(connect, name, settings, self._folders.get(name), ours)

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
            for mount in self._session_mounts.values():
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


Finder: TypeAlias = Callable[[str, Session | None], Awaitable[MountedServer]]
"""Returns the mounted server of that name: the session's own or the shared one."""


class Spelling(NamedTuple):
    """The names of a tool here."""

    verb: str
    """In `Sandbox`, after `mcp:`."""
    called: str
    """On MCP and as a model's function."""


def tools_of_servers(
    servers: Mapping[str, tuple[MountSettings, Mapping[str, types.Tool]]], find: Finder
) -> tuple[Tool, ...]:
    """Return the tools of all servers under unique names."""
    listed = {
        (server, name): tool
        for server, (settings, tools) in servers.items()
        for name, tool in tools.items()
        if settings.tools is None or any(fnmatchcase(name, pattern) for pattern in settings.tools)
    }
    names = spell(listed)
    made = (
        _tool(server, servers[server][0], tool, names[server, name], find)
        for (server, name), tool in listed.items()
    )
    return tuple(tool for tool in made if tool is not None)


def _tool(
    server: str, settings: MountSettings, listed: types.Tool, name: Spelling, find: Finder
) -> Tool | None:
    """Return one tool; `None`, with a log message, if it is unusable."""
    stateful = settings.per_session or settings.keeps_state
    try:
        schema = _input_schema(listed, stateful=stateful)
        output = None if listed.output_schema is None else _bounded(listed.output_schema)
    except (ValueError, RecursionError) as error:
        logger.warning("mcp server %s: tool %s is left out: %s", server, one_line(listed.name, 64), error)
        return None
    check_arguments = checker_of(listed.input_schema)
    check_data = None if output is None else checker_of(output)
    where = f"mcp:{name.verb}"

    def bind(arguments: Mapping[str, object]) -> dict[str, object]:
        if problem := check_arguments(dict(arguments)):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{where}: {problem}")
        return {"arguments": arguments}

    async def invoke(
        *, arguments: Mapping[str, object], context: CallContext, session: Session | None = None
    ) -> dict[str, object]:
        mount = await find(server, session)
        result = await mount.call(listed.name, arguments, context)
        ContentPresenter(context, session, settings.output_characters).show(result)
        return data_of(where, result, check_data)

    title = (listed.annotations.title if listed.annotations else None) or listed.title or listed.name
    return Tool(
        backend="mcp",
        verb=name.verb,
        called=name.called,
        title=one_line(f"{server}: {title}", MAX_TITLE),
        description=f"[{server}, an external server, says:] {clean(listed.description or title)}",
        input_schema=schema,
        output_schema=output if output is not None and output.get("type") == "object" else None,
        hints=_hints(listed.annotations or types.ToolAnnotations()),
        bind=bind,
        invoke=invoke,
        dump=as_object,
        session_parameter=SESSION_ARGUMENT if stateful else None,
        context_parameter="context",
    )


def _input_schema(listed: types.Tool, *, stateful: bool) -> dict[str, object]:
    schema = {"type": "object", **_bounded(listed.input_schema)}
    if schema["type"] != "object":
        raise ValueError("its arguments are not an object")
    if stateful:
        properties = as_object(schema.get("properties", {}))
        if SESSION_ARGUMENT in properties:
            raise ValueError(
                f"its argument {SESSION_ARGUMENT!r} conflicts with our session argument: share the server instead"
            )
        schema["properties"] = {**properties, SESSION_ARGUMENT: SESSION_SCHEMA}
    return schema


def _bounded(schema: Mapping[str, object]) -> dict[str, object]:
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"one of its schemas is longer than {MAX_SCHEMA_BYTES // 1024} KiB")
    return clean_schema(schema)


def _hints(annotations: types.ToolAnnotations) -> Hints:
    """Convert the annotations, with the protocol's defaults for missing ones."""
    read_only = bool(annotations.read_only_hint)
    return Hints(
        read_only=read_only,
        destructive=annotations.destructive_hint is not False and not read_only,
        idempotent=bool(annotations.idempotent_hint),
        open_world=annotations.open_world_hint is not False,
    )


def spell(tools: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Spelling]:
    """Return the names of tools, each given as its server's name and its own.

    A name that is too long, or equal to another one except for separators, ends in a part of a hash of the original names.
    Names therefore do not depend on the order and are the same at each start.
    """
    plain = {tool: _plain(*tool) for tool in tools}
    # Case and separators do not distinguish names: `Sandbox` treats `a.b` and `a_b` as equal.
    shared = Counter(re.sub(r"[-.]", "_", spelled.called).lower() for spelled in plain.values())
    return {
        tool: spelled
        if len(spelled.called) <= MAX_NAME
        and shared[re.sub(r"[-.]", "_", spelled.called).lower()] == 1
        and spelled.verb == f"{tool[0]}.{tool[1]}"
        else _marked(tool, spelled)
        for tool, spelled in plain.items()
    }


def _plain(server: str, tool: str) -> Spelling:
    verb = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{server}.{tool}")
    return Spelling(verb, "mcp_" + verb.replace(".", "_"))


def _marked(tool: tuple[str, str], spelled: Spelling) -> Spelling:
    mark = hashlib.sha256("\0".join(tool).encode("utf-8", "replace")).hexdigest()[:6]
    called = f"{spelled.called[: MAX_NAME - len(mark) - 1]}_{mark}"
    exact = spelled.verb == f"{tool[0]}.{tool[1]}"
    return Spelling(spelled.verb if exact else f"{spelled.verb[:120]}_{mark}", called)
