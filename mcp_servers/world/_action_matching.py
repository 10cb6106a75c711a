"""Matching of an action."""

import re
from collections.abc import Sequence

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean

_FILLER = re.compile(r"\b(the|an?|my)\s+")


def match_action(action: str, actions: Sequence[str]) -> int:
    """Return the index of an action given by its words, or by its number from 0.

    :raises ToolFailure: `bad_arguments`, with the nearest legal one.
    """
    said = action.strip()
    if said.isdecimal() and len(said) < 10:
        if int(said) < len(actions):
            return int(said)
        message = f"world_act: there is no action {said}: they count from 0 to {len(actions) - 1}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    plain = _plain(said)
    for place, known in enumerate(actions):
        if _plain(known) == plain:
            return place
    message = f"world_act: {said[:200]!r} is not possible now.{did_you_mean(said, actions)}"
    raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)


def _plain(action: str) -> str:
    """Normalize an action: articles, capitals and `into` for `in` do not matter."""
    words = _FILLER.sub("", " ".join(action.lower().rstrip(".!").split()))
    return words.replace(" into ", " in ").replace(" onto ", " on ").replace(" in ", " on ")
