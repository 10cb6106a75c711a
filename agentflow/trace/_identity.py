"""Identity of actions, trees, nodes and paths: canonical forms and ids derived from content."""

import unicodedata
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from agentflow.trace._node import Action, Seed


Json: TypeAlias = Any
"""A JSON value."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


def canonical(action: "Action") -> str:
    """Return the canonical form of an action: equal actions have equal forms, however they are written.

    Unicode is normalised, keys are sorted, and space at the end of lines and of the text is dropped; other space is
    kept, because it can be code. Arguments that are `None` count as omitted.

    See docs/engine.md.
    """
    return action.canonical


def canonical_form(tool: str, arguments: Mapping[str, Json]) -> str:
    """Return the canonical form of a call; see `canonical`."""
    normal = {name: _normal(value) for name, value in arguments.items() if value is not None}
    return f"{tool} {_ENCODER.encode(normal).decode()}"


def canonical_text(text: str) -> str:
    r"""Return the text in Unicode's composed form, with uniform line ends and no trailing space.

    >>> canonical_text("a  \r\nb")
    'a\nb'
    """
    composed = unicodedata.normalize("NFC", text)
    return "\n".join(line.rstrip() for line in composed.strip().splitlines())


def digest(value: object, size: int = 8) -> str:
    """Return a short hexadecimal digest of a JSON-serialisable value; keys are sorted first.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return blake2b(_ENCODER.encode(value), digest_size=size).hexdigest()


def tree_id(run: str, seed: "Seed") -> str:
    """Return the id of the tree that grows from this seed in this run.

    See docs/engine.md.
    """
    return f"tree_{digest([run, seed.index, seed.id, seed.content, seed.kwargs])}"


def node_id(tree: str, path: Iterable[int]) -> str:
    """Return the id of a node, given its position and those of its ancestors; the root's path is empty.

    >>> node_id("t", (0,)) == node_id("t", (1,))
    False
    """
    return f"node_{digest([tree, list(path)])}"


def trajectory_id(leaf: str) -> str:
    """Return the id of the path that ends at this node.

    See docs/synthesis.md.
    """
    return f"traj_{digest(leaf)}"


def _normal(value: Json) -> Json:
    match value:
        case str():
            return canonical_text(value)
        case {**entries}:
            return {key: _normal(entry) for key, entry in entries.items() if entry is not None}
        case [*items]:
            return [_normal(entry) for entry in items]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
