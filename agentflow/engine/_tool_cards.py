"""Tools as agents see them: without the arguments that a seed or task fixes, and without mentions of absent tools."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Backend, Tool, argument_of
from agentflow.trace import Action, Failure, ToolCard
from mcp_servers import BACKENDS

Json: TypeAlias = Any
"""A JSON value."""
Schema: TypeAlias = dict[str, Json]


def fixed_arguments(tool: Tool, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Select the fixed arguments that a tool takes, under the tool's own names. See docs/team.md."""
    properties = _properties(tool.input_schema)
    names = {alias: argument_of(alias, properties) for alias in fixed}
    by_alias = {name: fixed[alias] for alias, name in names.items() if name is not None and name != alias}
    return {**by_alias, **{alias: fixed[alias] for alias, name in names.items() if name == alias}}


def _properties(schema: Mapping[str, Any]) -> Schema:
    return schema.get("properties", {})


def fixed_names(arguments: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a call that were fixed: no model wrote them. See docs/team.md."""
    names = ((argument_of(name, arguments.keys()), value) for name, value in fixed.items())
    return sorted({name for name, value in names if name is not None and arguments[name] == value})


def card_of(tool: Tool, fixed: Mapping[str, Any], offered: Collection[str] | None = None) -> ToolCard:
    """Describe a tool for the roles, without the fixed arguments. See docs/team.md.

    :param offered: names of the available tools; what the description says about other tools is left out.
    """
    hidden = fixed_arguments(tool, fixed)
    if offered is not None:
        tool = _without_absent(tool, frozenset(offered))
    schema: Schema = dict(tool.input_schema)
    schema["properties"] = {name: kind for name, kind in _properties(schema).items() if name not in hidden}
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in hidden]
    return ToolCard(
        tool.name,
        tool.description,
        schema,
        limits=tool.limits,
        practices=tool.practices,
        examples=tuple(map(dict, tool.examples)),
    )


_TOOL_NAME = re.compile(rf"\b(?:{'|'.join(BACKENDS)})_[a-z_]*[a-z]\b")
_CLAUSES = re.compile(r"(?<=[.!?])\s+|(?<=;)\s+")
_ADDITION = re.compile(r",? (?:\(|as in\b|as named by\b|as returned by\b|or use\b|or with\b|then check\b)")
"""Beginning of an addition to a clause, which may be left out."""


@lru_cache(maxsize=512)
def _is_tool(name: str) -> bool:
    """Tell whether a backend has this tool, whether or not it is available."""
    backend, _, verb = name.partition("_")
    module, _, factory = BACKENDS[backend].partition(":")
    return hasattr(getattr(import_module(module), factory), verb) and not hasattr(Backend, verb)


def _without_absent(tool: Tool, offered: frozenset[str]) -> Tool:
    """Leave out what a tool's texts say about tools that are not offered."""
    texts = (tool.description, *tool.limits, *tool.practices, msgspec.json.encode(tool.input_schema).decode())
    mentioned = {name for text in texts for name in _TOOL_NAME.findall(text)}
    absent = frozenset(name for name in mentioned - offered - {tool.name} if _is_tool(name))
    if not absent:
        return tool
    # Sentences go across the lines of a paragraph.
    paragraphs = (part.replace("\n", " ") for part in tool.description.split("\n\n"))
    limits, practices = (
        tuple(filter(None, (_without_mentions(line, absent) for line in lines)))
        for lines in (tool.limits, tool.practices)
    )
    return replace(
        tool,
        description="\n\n".join(filter(None, (_without_mentions(part, absent) for part in paragraphs))),
        limits=limits,
        practices=practices,
        input_schema=_schema_without(tool.input_schema, absent),
    )


def _without_mentions(text: str, absent: frozenset[str]) -> str:
    """Return a text without the sentences that name absent tools; of their parts, those before remain."""
    if absent.isdisjoint(_TOOL_NAME.findall(text)):
        return text
    kept: list[str] = []
    begins = True
    """The next clause begins a sentence."""
    for clause in _CLAUSES.split(text):
        ends = not clause.endswith(";")
        if not absent.isdisjoint(_TOOL_NAME.findall(clause)):
            addition = _ADDITION.search(clause)
            before = clause[: addition.start()] if addition else ""
            before = "" if not absent.isdisjoint(_TOOL_NAME.findall(before)) else before
            clause = f"{before}{'.' if ends else ';'}" if before else ""
        elif not begins and not (kept and kept[-1].endswith(";")):
            # The sentence began with a clause that is left out.
            clause = ""
        if clause:
            kept.append(clause)
        elif ends and kept and kept[-1].endswith(";"):
            kept[-1] = f"{kept[-1][:-1]}."
        begins = ends
    return " ".join(kept)


def _schema_without(value: Json, absent: frozenset[str]) -> Json:
    """Return a schema whose descriptions do not name absent tools."""
    match value:
        case {**members}:
            schema: Schema = {}
            for name, member in members.items():
                if name == "description" and isinstance(member, str):
                    member = _without_mentions(member.replace("\n", " "), absent)
                    if not member:
                        continue
                schema[name] = _schema_without(member, absent)
            return schema
        case [*items]:
            return [_schema_without(item, absent) for item in items]
        case _:
            return value


def no_such_tool(name: str, tools: Iterable[str]) -> Failure:
    """Return the failure of a call of an unknown tool. See docs/engine.md."""
    return Failure(
        ErrorKind.TOOL_NOT_FOUND, f"there is no tool {name!r}; available tools: {', '.join(tools)}"
    )


def bind_action(
    tool: Tool, arguments: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[Action, Failure | None]:
    """Return the call of a tool with the fixed arguments, and the reason if the tool refuses them.

    See docs/engine.md.
    """
    action = Action(tool.name, {**arguments, **fixed_arguments(tool, fixed)})
    try:
        tool.bind(action.arguments)
    except ToolFailure as failure:
        return action, Failure(failure.kind, failure.message)
    return action, None
