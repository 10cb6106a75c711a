"""Work in a simulated world: one of its legal actions, those first that change something."""

import re
from collections.abc import Iterator
from itertools import takewhile
from random import Random

from agentflow.offline._arguments import Use
from agentflow.trajectory import PlanRequest, ToolCard, Verdict

_ORDER = (
    "put",
    "heat",
    "cool",
    "clean",
    "slice",
    "take",
    "turn on",
    "open",
    "go to",
    "examine",
    "close",
    "turn off",
    "look",
)
"""Verbs, the most effective first."""
_NUMBER = re.compile(r"^(?:\d+[.)]|-)\s+")


def world_calls(request: PlanRequest, acting: ToolCard) -> Iterator[tuple[ToolCard, Use]]:
    """Yield the beginning of the episode, then legal actions of the newest observation; undoing comes last."""
    reset = next((tool for tool in request.tools if tool.name.endswith("_reset")), None)
    if not request.path and reset is not None:
        yield reset, Use("Begin the episode.", {})
        return
    said = next((step.observation for step in reversed(request.path) if step.verdict is Verdict.NEW), "")
    actions = _actions(said)
    done = {str(step.action.arguments.get("action")) for step in request.path}
    places = [each for each in actions if each.startswith("go to")]
    Random(f"{request.seed} {sorted(done)}").shuffle(places)
    ordered = sorted(
        (each for each in [*places, *(each for each in actions if each not in places)] if each not in done),
        key=lambda each: (_undoes(each, done), _rank(each)),
    )
    for action in ordered:
        yield acting, Use(f"See what happens after: {action}.", {"action": action})


def _rank(action: str) -> int:
    return next((place for place, verb in enumerate(_ORDER) if action.startswith(verb)), len(_ORDER))


def _undoes(action: str, done: set[str]) -> bool:
    """Tell whether an action puts a thing back, or takes one again that was put down."""
    verb, _, rest = action.partition(" ")
    thing, _, place = rest.replace(" in ", " from ").replace(" on ", " from ").partition(" from ")
    if verb == "put":
        return f"take {thing} from {place}" in done
    return verb == "take" and any(each.startswith(f"put {thing} ") for each in done)


def _actions(said: str) -> list[str]:
    """Return the legal actions in an observation: a numbered list below `actions:`."""
    _, found, listed = f"\n{said}".partition("\nactions:")
    lines = takewhile(lambda line: line.startswith(" "), listed.splitlines()[1:]) if found else ()
    return [_NUMBER.sub("", line.strip()) for line in lines]
