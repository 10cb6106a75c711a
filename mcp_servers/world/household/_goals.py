"""Tasks in a household."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from mcp_servers.world.household._catalogue import FURNITURE, THINGS, FurnitureKind, ThingKind
from mcp_servers.world.household._house import House, Thing


@dataclass(frozen=True, slots=True)
class Goal:
    """Target state of a household."""

    task: str
    """Kind of task."""
    kind: str
    """Kind of thing."""
    state: str = ""
    """Required state: `clean`, `hot`, `cold` or `sliced`."""
    where: str | None = None
    """Kind of furniture that it must be in or on."""
    number: int = 1
    """Number of things."""

    @property
    def text(self) -> str:
        """Goal in words."""
        what = f"{self.state} {self.kind}".strip()
        if self.task == "find":
            return f"Find {_a(what)} and take it."
        if self.task == "examine":
            return f"Examine {_a(what)} in the light of a lamp."
        assert self.where is not None
        position = f"{FURNITURE[self.where].word} {_a(self.where)}"
        if self.number > 1:
            return f"Put two {_plural(what)} {position}, both {position.partition(' ')[0]} the same one."
        return f"Put {_a(what)} {position}."

    def reached(self, house: House) -> bool:
        """Return true if the household is in the target state."""
        mine = [thing for thing in house.things.values() if thing.kind == self.kind and self._fits(thing)]
        if self.task == "find":
            return any(thing.place is None for thing in mine)
        if self.task == "examine":
            return any(thing.name in house.examined for thing in mine)
        positions = [thing.place for thing in mine if thing.place is not None]
        return any(
            positions.count(position) >= self.number and house.furniture[position].kind == self.where
            for position in set(positions)
        )

    def _fits(self, thing: Thing) -> bool:
        if self.state == "clean":
            return not thing.dirty
        if self.state == "sliced":
            return thing.sliced
        return not self.state or thing.warmth == self.state


@dataclass(frozen=True, slots=True)
class _Task:
    """Kind of task: its possible things and destinations."""

    state: str = ""
    number: int = 1
    thing: Callable[[ThingKind], bool] = lambda able: True
    destination: Callable[[FurnitureKind], bool] | None = lambda able: True


TASKS: Final = {
    "find": _Task(destination=None),
    "place": _Task(),
    "clean": _Task("clean", thing=lambda able: able.washable, destination=lambda able: not able.cleans),
    "heat": _Task(
        "hot", thing=lambda able: able.warms, destination=lambda able: not (able.heats or able.cools)
    ),
    "cool": _Task(
        "cold", thing=lambda able: able.warms, destination=lambda able: not (able.heats or able.cools)
    ),
    "slice": _Task("sliced", thing=lambda able: able.slices),
    "examine": _Task(thing=lambda able: able.readable, destination=None),
    "two": _Task(number=2),
}
"""All kinds of tasks."""


def choose(random: Random, house: House, task: str) -> Goal | None:
    """Return a goal of that kind that this household can reach and has not; `None` if there is none."""
    wanted = TASKS[task]
    kinds = [
        kind
        for kind in sorted({thing.kind for thing in house.things.values()})
        if wanted.thing(THINGS[kind])
        and sum(thing.kind == kind for thing in house.things.values()) >= wanted.number
        # Things to clean start dirty, or the task would be done already.
        and (
            wanted.state != "clean"
            or all(piece.dirty for piece in house.things.values() if piece.kind == kind)
        )
    ]
    accepts, lamps = wanted.destination, [piece for piece in house.furniture.values() if piece.able.lights]
    if not kinds or (task == "examine" and not lamps):
        return None
    where = None
    if accepts is not None:
        there = sorted(
            {
                piece.kind
                for piece in house.furniture.values()
                if not piece.able.lights and accepts(piece.able)
            }
        )
        where = random.choice(there)
    goal = Goal(task, random.choice(kinds), wanted.state, where, wanted.number)
    return None if goal.reached(house) else goal


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _plural(word: str) -> str:
    irregular = {"knife": "knives", "lettuce": "lettuces", "bread": "breads", "watch": "watches"}
    kept, _, last = word.rpartition(" ")
    plural = irregular.get(last) or (f"{last}es" if last.endswith(("s", "o", "x", "ch")) else f"{last}s")
    return f"{kept} {plural}".strip()
