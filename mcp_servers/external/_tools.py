"""Tools of external servers as tools of the backend."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias, cast

import mcp_types as types

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext
from mcp_servers.core._session import Session
from mcp_servers.core._signature import SESSION_ARGUMENT
from mcp_servers.core._tool import Hints, Tool
from mcp_servers.external._mounted_server import MountedServer
from mcp_servers.external._results import ContentPresenter, data_of
from mcp_servers.external._sanitize import MAX_TITLE, clean, clean_schema, one_line
from mcp_servers.external._schema_checker import checker_of
from mcp_servers.external._settings import MountSettings

MAX_NAME = 64
"""Maximum length of OpenAI-style function names, which may contain letters, digits, `_` and `-`."""

MAX_SCHEMA_BYTES = 256 * 1024

_HANDLE = {
    "type": "string",
    "description": "Handle of the session to work in, from session_start or session_fork. "
    "Leave it out to work in the connection's own session.",
}

logger = logging.getLogger(__name__)

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
    wanted = checker_of(listed.input_schema)
    promised = None if output is None else checker_of(output)
    where = f"mcp:{name.verb}"

    def bind(arguments: Mapping[str, object]) -> dict[str, object]:
        if wrong := wanted(dict(arguments)):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{where}: {wrong}")
        return {"arguments": arguments}

    async def invoke(
        *, arguments: Mapping[str, object], context: CallContext, session: Session | None = None
    ) -> dict[str, object]:
        mount = await find(server, session)
        result = await mount.call(listed.name, arguments, context)
        ContentPresenter(context, session, settings.output_characters).show(result)
        return data_of(where, result, promised)

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
        dump=lambda value: cast("dict[str, object]", value),
        session_parameter=SESSION_ARGUMENT if stateful else None,
        context_parameter="context",
    )


def _input_schema(listed: types.Tool, *, stateful: bool) -> dict[str, object]:
    schema = {"type": "object", **_bounded(listed.input_schema)}
    if schema["type"] != "object":
        raise ValueError("its arguments are not an object")
    if stateful:
        properties = cast("dict[str, object]", schema.get("properties", {}))
        if SESSION_ARGUMENT in properties:
            raise ValueError(
                f"its argument {SESSION_ARGUMENT!r} conflicts with our session argument: share the server instead"
            )
        schema["properties"] = {**properties, SESSION_ARGUMENT: _HANDLE}
    return schema


def _bounded(schema: Mapping[str, object]) -> dict[str, object]:
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"one of its schemas is longer than {MAX_SCHEMA_BYTES // 1024} KiB")
    return clean_schema(schema)


def _hints(given: types.ToolAnnotations) -> Hints:
    """Convert the annotations, with the protocol's defaults for missing ones."""
    read_only = bool(given.read_only_hint)
    return Hints(
        read_only=read_only,
        destructive=given.destructive_hint is not False and not read_only,
        idempotent=bool(given.idempotent_hint),
        open_world=given.open_world_hint is not False,
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
