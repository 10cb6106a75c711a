"""JSON schemas of answers, as strict as endpoints want them: every object closed, every property required."""

import copy
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from agentflow.trajectory import Decision, Draft, NextStep, ToolCard

__all__ = ["answer_schema", "command_schema", "decided_schema", "draft_schema", "plan_schema", "step_schema"]

Schema: TypeAlias = dict[str, Any]

_DROPPED = {"title", "default", "$defs", "discriminator"}


@lru_cache
def answer_schema(kind: type[msgspec.Struct]) -> Schema:
    """The schema of a role's answer."""
    schema = msgspec.json.schema(kind)
    named = cast("dict[str, Schema]", schema["$defs"])
    # Ours have defaults, not nulls: what may be left out in Python is asked for here.
    asked = {name: {**_typed(each), **_required(each)} for name, each in named.items()}
    return _strict(schema, asked, ())


def _required(schema: Schema) -> Schema:
    return {"required": list(schema["properties"])} if "properties" in schema else {}


def _typed(schema: Schema) -> Schema:
    """With the type that words to choose from have: some endpoints want it said."""
    words = cast("list[object]", schema.get("enum", []))
    return {"type": "string", **schema} if words and all(isinstance(word, str) for word in words) else schema


@lru_cache
def draft_schema(pictures: bool) -> Schema:
    """The schema of a draft. Only what was shown pictures may cite them."""
    schema = answer_schema(Draft)
    if pictures:
        return schema
    schema = copy.deepcopy(schema)
    citation = schema["properties"]["steps"]["items"]["properties"]["citations"]["items"]
    del citation["properties"]["region"]
    citation["required"].remove("region")
    return schema


def plan_schema(tools: tuple[ToolCard, ...], count: int) -> Schema:
    """The schema of a plan: so many proposals, each a call of one of these tools with arguments of its own schema."""
    items = {"anyOf": list(_proposals(msgspec.json.encode(tools)))}
    proposals = {"type": "array", "minItems": count, "maxItems": count, "items": items}
    return _closed({"proposals": proposals})


@lru_cache(maxsize=64)
def _proposals(tools: bytes) -> tuple[Schema, ...]:
    """A schema for each tool. Kept by content: a run asks with the same few sets of tools all the time."""
    return tuple(_proposal(tool) for tool in msgspec.json.decode(tools, type=tuple[ToolCard, ...]))


def _proposal(tool: ToolCard) -> Schema:
    name = {"type": "string", "const": tool.name}
    return _closed({"intent": {"type": "string"}, "tool": name, "arguments": _arguments(tool)})


def _arguments(tool: ToolCard) -> Schema:
    return _strict(
        {"type": "object", "properties": {}, **tool.schema}, cast("Schema", tool.schema.get("$defs", {})), ()
    )


@lru_cache(maxsize=64)
def step_schema(tools: tuple[str, ...]) -> Schema:
    """The schema of a next step: one of these tools."""
    schema = copy.deepcopy(answer_schema(NextStep))
    schema["properties"]["tool_name"] = {"type": "string", "enum": list(tools)}
    return schema


@lru_cache(maxsize=64)
def decided_schema(tools: tuple[str, ...]) -> Schema:
    """The schema of a decision with what follows from it: a step, or nothing."""
    following = {"anyOf": [step_schema(tools), {"type": "null"}]}
    return _closed({"decision": answer_schema(Decision), "next": following})


def command_schema(tool: ToolCard) -> Schema:
    """The schema of a call of this tool."""
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
    """The schema with references filled in, objects closed, and optional properties as required ones that may be null.

    What refers to itself, and objects with keys of any name, can't be written so: they stay open.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in inside or name not in named:
            return {}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _strict({**cast("Schema", named[name]), **rest}, named, (*inside, name))
    strict: Schema = {}
    for key, value in schema.items():
        match key, value:
            case ("properties", dict()):
                continue
            case (("anyOf" | "oneOf" | "allOf" | "prefixItems"), list()):
                strict[key] = [_strict(each, named, inside) for each in cast("list[Schema]", value)]
            case (("items" | "additionalProperties"), dict()):
                strict[key] = _strict(cast("Schema", value), named, inside)
            case _ if key not in _DROPPED:
                strict[key] = value
            case _:
                continue
    if "properties" not in schema or isinstance(schema.get("additionalProperties"), dict):
        return strict
    required = cast("list[str]", schema.get("required", []))
    properties = cast("dict[str, Schema]", schema["properties"])
    own = {name: _strict(each, named, inside) for name, each in properties.items()}
    own = {name: each if name in required else _nullable(each) for name, each in own.items()}
    return {**strict, **_closed(own)}


def _nullable(schema: Schema) -> Schema:
    choices = cast("list[Schema]", schema.get("anyOf", []))
    if {"type": "null"} in choices:
        return schema
    described = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [*(choices or [bare]), {"type": "null"}], **described}
