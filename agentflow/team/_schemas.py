"""JSON schemas of answers in the strict form that endpoints require.

In a strict schema every object is closed and every property is required; optional ones may be null.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from agentflow.questions import QuestionProposal, Readings, Recalled
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

Json: TypeAlias = Any
"""A JSON value."""
Schema: TypeAlias = dict[str, Json]

_DROPPED = {"title", "default", "$defs", "discriminator"}


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
    own = {name: _strict(each, named, inside) for name, each in schema.get("properties", {}).items()}
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
