"""Tools as models see them, and JSON schemas of answers in the strict form that endpoints require.

In a strict schema every object is closed and every property is required; optional ones may be null.
"""

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from agentflow.questions import QuestionProposal, Readings, Recalled
from agentflow.sandbox import Backend, Tool, argument_of
from agentflow.trace import (
    Command,
    Decision,
    Judgement,
    NextStep,
    Plan,
    QueryAnalysis,
    Solution,
    ToolCard,
)
from mcp_servers import BACKENDS

Json: TypeAlias = Any
"""A JSON value."""
Schema: TypeAlias = dict[str, Json]

_DROPPED = {"title", "default", "$defs", "discriminator"}


def fixed_arguments(tool: Tool, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Select the fixed arguments that a tool takes, under the tool's own names. See docs/team.md."""
    known = _properties(tool.input_schema)
    found = {name: argument_of(name, known) for name in fixed}
    by_alias = {own: fixed[name] for name, own in found.items() if own is not None and own != name}
    return {**by_alias, **{name: fixed[name] for name, own in found.items() if own == name}}


def fixed_names(arguments: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a call that were fixed: no model wrote them. See docs/team.md."""
    names = ((argument_of(name, arguments.keys()), value) for name, value in fixed.items())
    return sorted({name for name, value in names if name is not None and arguments[name] == value})


def card_of(tool: Tool, fixed: Mapping[str, Any], offered: Collection[str] | None = None) -> ToolCard:
    """Describe a tool for the roles, without the fixed arguments. See docs/team.md.

    :param offered: names of the available tools; what the description says about other tools is left out.
    """
    own = fixed_arguments(tool, fixed)
    if offered is not None:
        tool = _without_absent(tool, frozenset(offered))
    schema: Schema = dict(tool.input_schema)
    schema["properties"] = {name: kind for name, kind in _properties(schema).items() if name not in own}
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in own]
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
            found: Schema = {}
            for name, member in members.items():
                if name == "description" and isinstance(member, str):
                    member = _without_mentions(member.replace("\n", " "), absent)
                    if not member:
                        continue
                found[name] = _schema_without(member, absent)
            return found
        case [*items]:
            return [_schema_without(item, absent) for item in items]
        case _:
            return value


def drop_unused_nulls(arguments: Mapping[str, Any], card: ToolCard | None) -> dict[str, Any]:
    """Drop nulls given for optional arguments, which strict schemas force a model to write."""
    required: list[str] = card.schema.get("required", []) if card is not None else []
    return {
        name: _without_nulls(value)
        for name, value in arguments.items()
        if value is not None or name in required
    }


def _without_nulls(value: Json) -> Json:
    match value:
        case {**members}:
            return {name: _without_nulls(member) for name, member in members.items() if member is not None}
        case [*items]:
            return [_without_nulls(item) for item in items]
        case _:
            return value


def _properties(schema: Mapping[str, Any]) -> Schema:
    return schema.get("properties", {})


@lru_cache
def answer_schema(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of an answer."""
    schema = msgspec.json.schema(kind)
    named: Schema = schema["$defs"]
    return _strict(schema, {name: _complete(each) for name, each in named.items()}, ())


def _complete(schema: Schema) -> Schema:
    """Require all fields, and add the type of an enumeration of strings, which some endpoints require."""
    if "properties" in schema:
        # Fields with defaults are optional in Python; the model has to write them all.
        return {**schema, "required": list(schema["properties"])}
    words: list[Any] = schema.get("enum", [])
    return {"type": "string", **schema} if words and all(isinstance(word, str) for word in words) else schema


def plan_schema(tools: tuple[ToolCard, ...], count: int) -> Schema:
    """Return the schema of a plan: `count` proposals, each a call of one tool with that tool's own arguments."""
    items = {"anyOf": list(_proposals(msgspec.json.encode(tools)))}
    proposals = {"type": "array", "minItems": count, "maxItems": count, "items": items}
    return _closed({"proposals": proposals})


@lru_cache(maxsize=64)
def _proposals(tools: bytes) -> tuple[Schema, ...]:
    """Return a schema for each encoded tool. Cached by content: a run uses the same few sets of tools throughout."""
    return tuple(_proposal(tool) for tool in msgspec.json.decode(tools, type=tuple[ToolCard, ...]))


def _proposal(tool: ToolCard) -> Schema:
    name = {"type": "string", "const": tool.name}
    return _closed({"intent": {"type": "string"}, "tool": name, "arguments": _arguments(tool)})


def _arguments(tool: ToolCard) -> Schema:
    return _strict({"type": "object", "properties": {}, **tool.schema}, tool.schema.get("$defs", {}), ())


@lru_cache(maxsize=64)
def step_schema(tools: tuple[str, ...]) -> Schema:
    """Return the schema of a next step that names one of these tools."""
    schema = copy.deepcopy(answer_schema(NextStep))
    schema["properties"]["tool_name"] = {"type": "string", "enum": list(tools)}
    return schema


@lru_cache(maxsize=64)
def decided_schema(tools: tuple[str, ...]) -> Schema:
    """Return the schema of a decision with the next step, or null."""
    following = {"anyOf": [step_schema(tools), {"type": "null"}]}
    return _closed({"decision": answer_schema(Decision), "next": following})


def command_schema(tool: ToolCard) -> Schema:
    """Return the schema of a call of this tool."""
    return _command(msgspec.json.encode(tool))


@lru_cache(maxsize=256)
def _command(tool: bytes) -> Schema:
    card = msgspec.json.decode(tool, type=ToolCard)
    return _closed({"analysis": {"type": "string"}, "arguments": _arguments(card)})


def _closed(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _strict(schema: Schema, named: Schema, inside: tuple[str, ...]) -> Schema:
    """Inline references, close objects, and make optional properties required but nullable.

    Recursive references, and objects with arbitrary keys, cannot be expressed so: they stay open.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in inside or name not in named:
            return {}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _strict({**named[name], **rest}, named, (*inside, name))
    strict: Schema = {}
    for key, value in schema.items():
        match key, value:
            case ("properties", dict()):
                continue
            case (("anyOf" | "oneOf" | "allOf" | "prefixItems"), [*choices]):
                strict[key] = [_strict(each, named, inside) for each in choices]
            case (("items" | "additionalProperties"), {**inner}):
                strict[key] = _strict(inner, named, inside)
            case _ if key not in _DROPPED:
                strict[key] = value
            case _:
                continue
    if "properties" not in schema or isinstance(schema.get("additionalProperties"), dict):
        return strict
    required: list[str] = schema.get("required", [])
    own = {name: _strict(each, named, inside) for name, each in _properties(schema).items()}
    own = {name: each if name in required else _nullable(each) for name, each in own.items()}
    return {**strict, **_closed(own)}


def _nullable(schema: Schema) -> Schema:
    choices: list[Schema] = schema.get("anyOf", [])
    if {"type": "null"} in choices:
        return schema
    described = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [*(choices or [bare]), {"type": "null"}], **described}


def role_schema(
    role: str, tools: Sequence[ToolCard], *, grows: bool
) -> tuple[type[msgspec.Struct], Schema] | None:
    """Return the type and the schema of a role's usual answer; `None`: it answers in free text. See docs/supervisor.md.

    :param tools: tools of the run, at least one.
    :param grows: the run grows trees, otherwise it works on tasks.
    """
    if role == "executor":
        return Command, command_schema(tools[0])
    if role == "planner":
        if grows:
            return Plan, plan_schema(tuple(tools), 1)
        return NextStep, step_schema(tuple(tool.name for tool in tools))
    kinds = _GROWING if grows else _WORKING
    kind = kinds.get(role)
    return None if kind is None else (kind, answer_schema(kind))


_GROWING: dict[str, type[msgspec.Struct]] = {
    "verifier": Judgement,
    "generator": QuestionProposal,
    "reader": Readings,
    "learner": Recalled,
}
_WORKING: dict[str, type[msgspec.Struct]] = {
    "analyst": QueryAnalysis,
    "verifier": Decision,
    "generator": Solution,
}
