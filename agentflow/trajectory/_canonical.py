"""When two actions are the same action."""

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

if TYPE_CHECKING:
    from agentflow.trajectory._node import Action

__all__ = ["canonical", "canonical_form", "canonical_text"]

_ENCODER = msgspec.json.Encoder(order="deterministic")


def canonical(action: "Action") -> str:
    """The action in a form that is the same for every way to write it: Unicode, spaces, order of keys.

    Space at the end of lines and of the text is nothing; space elsewhere is kept, since it can be code. Arguments that
    are `None` count as left out.
    """
    return action.canonical


def canonical_form(tool: str, arguments: Mapping[str, object]) -> str:
    """See `canonical`."""
    said = {name: _normal(value) for name, value in arguments.items() if value is not None}
    return f"{tool} {_ENCODER.encode(said).decode()}"


def canonical_text(text: str) -> str:
    """Text in Unicode's composed form, with one kind of line end and no space at the end of a line."""
    composed = unicodedata.normalize("NFC", text)
    return "\n".join(line.rstrip() for line in composed.strip().splitlines())


def _normal(value: object) -> object:
    match value:
        case str():
            return canonical_text(value)
        case dict():
            entries = cast("dict[str, object]", value)
            return {key: _normal(entry) for key, entry in entries.items() if entry is not None}
        case list() | tuple():
            return [_normal(entry) for entry in cast("list[object]", value)]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
