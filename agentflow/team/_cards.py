"""Tools as models see them: without the arguments that a seed or a task fixes, and without what strict schemas add."""

from collections.abc import Mapping
from typing import Any, cast

from agentflow.sandbox import Tool, argument_of
from agentflow.trajectory import ToolCard

__all__ = ["card_of", "fixed_arguments", "without_idle_nulls"]


def fixed_arguments(tool: Tool, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fixed arguments that this tool takes, by the names it has for them."""
    known = _properties(tool)
    found = {name: argument_of(name, known) for name in fixed}
    by_alias = {own: fixed[name] for name, own in found.items() if own is not None and own != name}
    return {**by_alias, **{name: fixed[name] for name, own in found.items() if own == name}}


def card_of(tool: Tool, fixed: Mapping[str, Any]) -> ToolCard:
    """The tool as roles see it: what is fixed is not their business."""
    own = fixed_arguments(tool, fixed)
    schema = dict(tool.input_schema)
    schema["properties"] = {name: kind for name, kind in _properties(tool).items() if name not in own}
    required = schema.get("required")
    if isinstance(required, list):
        schema["required"] = [name for name in cast("list[str]", required) if name not in own]
    return ToolCard(
        tool.name,
        tool.description,
        schema,
        limits=tool.limits,
        practices=tool.practices,
        examples=tuple(map(dict, tool.examples)),
    )


def without_idle_nulls(arguments: Mapping[str, Any], card: ToolCard | None) -> dict[str, Any]:
    """Without nulls for optional arguments: strict schemas ask for every argument."""
    required: list[str] = card.schema.get("required", []) if card is not None else []
    given = arguments.items()
    return {name: _told(value) for name, value in given if value is not None or name in required}


def _told(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        return {name: _told(member) for name, member in members if member is not None}
    if isinstance(value, list):
        return [_told(member) for member in cast("list[object]", value)]
    return value


def _properties(tool: Tool) -> dict[str, object]:
    properties = tool.input_schema.get("properties")
    return cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
