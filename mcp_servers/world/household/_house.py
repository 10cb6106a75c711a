"""State of a household: positions and states of everything."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from mcp_servers.world.household._catalogue import FURNITURE, ROOMS, THINGS, FurnitureKind, ThingKind

HANDS = 2
THINGS_OF_A_KIND = 3


@dataclass(frozen=True, slots=True)
class Furniture:
    """Piece of furniture."""

    name: str
    """Name: its kind and a number."""
    kind: str
    """Kind."""
    room: str
    """Room."""
    open: bool = False
    """It is open."""
    lit: bool = False
    """It is switched on."""

    @property
    def able(self) -> FurnitureKind:
        """Abilities of its kind."""
        return FURNITURE[self.kind]

    @property
    def shows(self) -> bool:
        """True if its content is visible and reachable."""
        return not self.able.lights and (self.open or not self.able.opens)


@dataclass(frozen=True, slots=True)
class Thing:
    """Thing that can be carried."""

    name: str
    """Name: its kind and a number."""
    kind: str
    """Kind."""
    place: str | None
    """Furniture that it is in or on; `None` if it is carried."""
    dirty: bool = False
    """It needs cleaning."""
    warmth: str = ""
    """`hot`, `cold`, or empty."""
    sliced: bool = False
    """It was sliced."""

    @property
    def able(self) -> ThingKind:
        """Abilities of its kind."""
        return THINGS[self.kind]


@dataclass(slots=True)
class House:
    """Household and the agent in it. A copy shares no mutable state."""

    doors: dict[str, tuple[str, ...]]
    """Rooms, each with its neighbours."""
    furniture: dict[str, Furniture]
    """Furniture by name."""
    things: dict[str, Thing]
    """Things by name."""
    room: str
    """Room of the agent."""
    at: str | None = None
    """Furniture in front of the agent."""
    examined: set[str] = field(default_factory=set[str])
    """Things that were examined in good light."""

    def copy(self) -> "House":
        """Return an independent copy."""
        return replace(
            self, furniture=dict(self.furniture), things=dict(self.things), examined=set(self.examined)
        )

    def here(self) -> list[Furniture]:
        """Return the furniture of this room."""
        return [piece for piece in self.furniture.values() if piece.room == self.room]

    def front(self) -> Furniture | None:
        """Return the furniture within reach."""
        return None if self.at is None else self.furniture[self.at]

    def carried(self) -> list[Thing]:
        """Return the carried things."""
        return [thing for thing in self.things.values() if thing.place is None]

    def lying(self, place: str) -> list[Thing]:
        """Return the things in or on a piece of furniture."""
        return [thing for thing in self.things.values() if thing.place == place]


def build(random: Random) -> House:
    """Return a household with a kitchen and other rooms, all reachable, and things in them."""
    others = random.sample([room for room in ROOMS if room != "kitchen"], random.randint(2, 4))
    rooms = ["kitchen", *others]
    random.shuffle(rooms)
    furniture: dict[str, Furniture] = {}
    count = Counter[str]()
    for room in rooms:
        for kind in ROOMS[room]:
            for _ in range(random.randint(1, FURNITURE[kind].most)):
                count[kind] += 1
                name = f"{kind} {count[kind]}"
                furniture[name] = Furniture(name, kind, room)
    surfaces = [piece.name for piece in furniture.values() if not piece.able.lights]
    things: dict[str, Thing] = {}
    for kind in sorted(THINGS):
        for number in range(1, random.randint(1, THINGS_OF_A_KIND) + 1):
            dirty = THINGS[kind].washable and random.random() < 0.5
            name = f"{kind} {number}"
            things[name] = Thing(name, kind, random.choice(surfaces), dirty=dirty)
    return House(_doors(random, rooms), furniture, things, random.choice(rooms))


def _doors(random: Random, rooms: list[str]) -> dict[str, tuple[str, ...]]:
    """Connect each room after the first to an earlier one, so that every room is reachable."""
    doors: dict[str, list[str]] = {room: [] for room in rooms}
    for index, room in enumerate(rooms[1:], 1):
        other = random.choice(rooms[:index])
        doors[room].append(other)
        doors[other].append(room)
    return {room: tuple(sorted(others)) for room, others in doors.items()}
