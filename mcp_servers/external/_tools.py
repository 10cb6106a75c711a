"""Tools of external servers, as tools of ours."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias, cast

import mcp_types as types

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext
from mcp_servers.core._session import Session
from mcp_servers.core._signature import SESSION_ARGUMENT
from mcp_servers.core._tool import Hints, Tool
from mcp_servers.external._checking import checker_of
from mcp_servers.external._mount import Mount
from mcp_servers.external._names import Spelling, spell
from mcp_servers.external._results import Answer, data_of
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._words import LONGEST_TITLE, clean, clean_schema, one_line

__all__ = ["Finder", "tools_of_servers"]

LONGEST_SCHEMA = 256 * 1024

_HANDLE = {
    "type": "string",
    "description": "Handle of the session to work in, from session_start or session_fork. "
    "Leave it out to work in the connection's own session.",
}

logger = logging.getLogger(__name__)

Finder: TypeAlias = Callable[[str, Session | None], Awaitable[Mount]]
"""Gives the mounted server of that name: the session's own, or the one for all."""


def tools_of_servers(
    servers: Mapping[str, tuple[MountSettings, Mapping[str, types.Tool]]], find: Finder
) -> tuple[Tool, ...]:
    """The tools of all servers, by names of which each means one of them."""
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
    """One tool; `None`, and a line in the log, if it can't be used."""
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
        Answer(context, session, settings.output_characters).show(result)
        return data_of(where, result, promised)

    title = (listed.annotations.title if listed.annotations else None) or listed.title or listed.name
    return Tool(
        backend="mcp",
        verb=name.verb,
        called=name.called,
        title=one_line(f"{server}: {title}", LONGEST_TITLE),
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
        raise ValueError("its arguments are no object")
    if stateful:
        properties = cast("dict[str, object]", schema.get("properties", {}))
        if SESSION_ARGUMENT in properties:
            raise ValueError(
                f"its argument {SESSION_ARGUMENT!r} is the name of our own: let it be shared instead"
            )
        schema["properties"] = {**properties, SESSION_ARGUMENT: _HANDLE}
    return schema


def _bounded(schema: Mapping[str, object]) -> dict[str, object]:
    if len(json.dumps(schema)) > LONGEST_SCHEMA:
        raise ValueError(f"a schema of it is longer than {LONGEST_SCHEMA // 1024} KiB")
    return clean_schema(schema)


def _hints(given: types.ToolAnnotations) -> Hints:
    """The four annotations; the protocol's defaults for what is left out."""
    read_only = bool(given.read_only_hint)
    return Hints(
        read_only=read_only,
        destructive=given.destructive_hint is not False and not read_only,
        idempotent=bool(given.idempotent_hint),
        open_world=given.open_world_hint is not False,
    )
