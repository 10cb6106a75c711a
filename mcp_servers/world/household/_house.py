"""One household: where everything is, and in which state."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from mcp_servers.world.household._catalogue import FURNITURE, ROOMS, THINGS, FurnitureKind, ThingKind

__all__ = ["Furniture", "House", "Thing", "build"]

HANDS = 2
THINGS_OF_A_KIND = 3


@dataclass(frozen=True, slots=True)
class Furniture:
    """A piece of furniture."""

    name: str
    """What it is called: its kind and a number."""
    kind: str
    """Its kind."""
    room: str
    """Where it stands."""
    open: bool = False
    """It is open, if it can be."""
    lit: bool = False
    """It is on, if it is a lamp."""

    @property
    def able(self) -> FurnitureKind:
        """What can be done with it."""
        return FURNITURE[self.kind]

    @property
    def shows(self) -> bool:
        """What is there can be seen and taken."""
        return not self.able.lights and (self.open or not self.able.opens)


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing that can be carried."""

    name: str
    """What it is called: its kind and a number."""
    kind: str
    """Its kind."""
    place: str | None
    """The furniture where it lies; `None`: it is carried."""
    dirty: bool = False
    """It needs cleaning."""
    warmth: str = ""
    """`hot`, `cold`, or nothing of the kind."""
    sliced: bool = False
    """It was cut."""

    @property
    def able(self) -> ThingKind:
        """What can be done with it."""
        return THINGS[self.kind]


@dataclass(slots=True)
class House:
    """A household, and whoever acts in it. A copy shares nothing that changes."""

    doors: dict[str, tuple[str, ...]]
    """The rooms, each with those that it leads to."""
    furniture: dict[str, Furniture]
    """All furniture by name."""
    things: dict[str, Thing]
    """All things by name."""
    room: str
    """Where the acting one is."""
    at: str | None = None
    """The furniture in front of it."""
    examined: set[str] = field(default_factory=set[str])
    """Things that were looked at in good light."""

    def copy(self) -> "House":
        """An independent copy."""
        return replace(
            self, furniture=dict(self.furniture), things=dict(self.things), examined=set(self.examined)
        )

    def here(self) -> list[Furniture]:
        """The furniture of this room."""
        return [one for one in self.furniture.values() if one.room == self.room]

    def front(self) -> Furniture | None:
        """The furniture that is in reach."""
        return None if self.at is None else self.furniture[self.at]

    def carried(self) -> list[Thing]:
        """What is in the hands."""
        return [thing for thing in self.things.values() if thing.place is None]

    def lying(self, place: str) -> list[Thing]:
        """What lies there."""
        return [thing for thing in self.things.values() if thing.place == place]


def build(random: Random) -> House:
    """A household with a kitchen and some other rooms, all to be reached, and things lying about."""
    others = random.sample([room for room in ROOMS if room != "kitchen"], random.randint(2, 4))
    rooms = ["kitchen", *others]
    random.shuffle(rooms)
    furniture = _numbered((kind, room) for room in rooms for kind in _furnished(random, room))
    places = [one.name for one in furniture.values() if not one.able.lights]
    things: dict[str, Thing] = {}
    for kind in sorted(THINGS):
        for number in range(1, random.randint(1, THINGS_OF_A_KIND) + 1):
            dirty = THINGS[kind].washable and random.random() < 0.5
            name = f"{kind} {number}"
            things[name] = Thing(name, kind, random.choice(places), dirty=dirty)
    return House(_doors(random, rooms), furniture, things, random.choice(rooms))


def _furnished(random: Random, room: str) -> list[str]:
    return [kind for kind in ROOMS[room] for _ in range(random.randint(1, FURNITURE[kind].most))]


def _numbered(placed: Iterable[tuple[str, str]]) -> dict[str, Furniture]:
    count: dict[str, int] = {}
    numbered: dict[str, Furniture] = {}
    for kind, room in placed:
        count[kind] = count.get(kind, 0) + 1
        name = f"{kind} {count[kind]}"
        numbered[name] = Furniture(name, kind, room)
    return numbered


def _doors(random: Random, rooms: list[str]) -> dict[str, tuple[str, ...]]:
    """Each room after the first leads to one before it, so that every room can be reached."""
    doors: dict[str, list[str]] = {room: [] for room in rooms}
    for index, room in enumerate(rooms[1:], 1):
        other = random.choice(rooms[:index])
        doors[room].append(other)
        doors[other].append(room)
    return {room: tuple(sorted(others)) for room, others in doors.items()}
