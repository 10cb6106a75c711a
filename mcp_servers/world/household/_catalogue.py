"""What there is in a household: rooms, furniture and things, and what can be done with them."""

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["FURNITURE", "ROOMS", "THINGS", "FurnitureKind", "ThingKind"]

Preposition = Literal["in", "on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FurnitureKind:
    """A kind of furniture."""

    word: Preposition = "on"
    """How things lie there."""
    most: int = 1
    """How many of it one room may have."""
    opens: bool = False
    """It can be opened and closed, and shows nothing while it is closed."""
    cleans: bool = False
    """Things are cleaned with it."""
    heats: bool = False
    """Things are heated with it."""
    cools: bool = False
    """Things are cooled with it."""
    lights: bool = False
    """It is a lamp; nothing lies there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThingKind:
    """A kind of thing that can be carried."""

    washable: bool = False
    """It can be dirty, and cleaned."""
    warms: bool = False
    """It can be heated and cooled."""
    slices: bool = False
    """It can be cut."""
    cuts: bool = False
    """Other things are cut with it."""
    readable: bool = False
    """There is something to see on it, in good light."""


FURNITURE: Final = {
    "armchair": FurnitureKind(),
    "bathtub": FurnitureKind(word="in"),
    "bed": FurnitureKind(),
    "bin": FurnitureKind(word="in"),
    "bookcase": FurnitureKind(most=2),
    "cabinet": FurnitureKind(word="in", most=4, opens=True),
    "chest": FurnitureKind(word="in", opens=True),
    "coffee table": FurnitureKind(),
    "countertop": FurnitureKind(most=2),
    "desk": FurnitureKind(),
    "desk lamp": FurnitureKind(lights=True),
    "dining table": FurnitureKind(),
    "drawer": FurnitureKind(word="in", most=3, opens=True),
    "floor lamp": FurnitureKind(lights=True),
    "fridge": FurnitureKind(word="in", opens=True, cools=True),
    "microwave": FurnitureKind(word="in", opens=True, heats=True),
    "nightstand": FurnitureKind(most=2),
    "shelf": FurnitureKind(most=3),
    "sink": FurnitureKind(word="in", cleans=True),
    "sofa": FurnitureKind(),
    "stove": FurnitureKind(heats=True),
    "towel rack": FurnitureKind(),
    "wardrobe": FurnitureKind(word="in", opens=True),
    "washbasin": FurnitureKind(word="in", cleans=True),
}
"""Every kind of furniture."""

ROOMS: Final = {
    "bathroom": ("bathtub", "cabinet", "shelf", "towel rack", "washbasin", "bin"),
    "bedroom": ("bed", "desk", "desk lamp", "drawer", "nightstand", "wardrobe"),
    "kitchen": (
        "bin",
        "cabinet",
        "countertop",
        "dining table",
        "drawer",
        "fridge",
        "microwave",
        "sink",
        "stove",
    ),
    "living room": ("armchair", "coffee table", "floor lamp", "shelf", "sofa", "chest"),
    "study": ("bookcase", "desk", "desk lamp", "drawer", "armchair"),
}
"""Every room, and the furniture that it has."""

THINGS: Final = {
    "apple": ThingKind(washable=True, warms=True, slices=True),
    "book": ThingKind(readable=True),
    "bowl": ThingKind(washable=True),
    "bread": ThingKind(warms=True, slices=True),
    "cloth": ThingKind(washable=True),
    "cup": ThingKind(washable=True, warms=True),
    "egg": ThingKind(warms=True),
    "fork": ThingKind(washable=True),
    "key": ThingKind(),
    "knife": ThingKind(washable=True, cuts=True),
    "letter": ThingKind(readable=True),
    "lettuce": ThingKind(washable=True, warms=True, slices=True),
    "mug": ThingKind(washable=True, warms=True),
    "newspaper": ThingKind(readable=True),
    "pen": ThingKind(),
    "phone": ThingKind(readable=True),
    "pillow": ThingKind(),
    "plate": ThingKind(washable=True),
    "potato": ThingKind(washable=True, warms=True, slices=True),
    "soap": ThingKind(),
    "spoon": ThingKind(washable=True),
    "tomato": ThingKind(washable=True, warms=True, slices=True),
    "towel": ThingKind(washable=True),
    "watch": ThingKind(readable=True),
}
"""Every kind of thing."""
