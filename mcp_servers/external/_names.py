"""Names that every client takes, for tools that somebody else named."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Spelling", "spell"]

LONGEST = 64
"""The longest name that OpenAI-style functions may have; letters, digits, `_` and `-` are what it may hold."""


class Spelling(NamedTuple):
    """How a tool is called here."""

    verb: str
    """In `Sandbox`, after `mcp:`."""
    called: str
    """On MCP, and as a function of a model."""


def spell(tools: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Spelling]:
    """The names of tools, each given as its server's name and its own.

    A name that is too long, or that another tool has but for its separators, ends in a piece of a hash of what it stands
    for: it depends on no order, and is the same at each start.
    """
    plain = {tool: _plain(*tool) for tool in tools}
    # Case and separators alone don't tell names apart: `Sandbox` takes `a.b` and `a_b` for one.
    shared = Counter(re.sub(r"[-.]", "_", spelled.called).lower() for spelled in plain.values())
    return {
        tool: spelled
        if len(spelled.called) <= LONGEST
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
    called = f"{spelled.called[: LONGEST - len(mark) - 1]}_{mark}"
    exact = spelled.verb == f"{tool[0]}.{tool[1]}"
    return Spelling(spelled.verb if exact else f"{spelled.verb[:120]}_{mark}", called)
