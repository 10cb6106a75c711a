"""Catalogue of a household: rooms, furniture, things, and their abilities."""

from dataclasses import dataclass
from typing import Final, Literal

Preposition = Literal["in", "on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FurnitureKind:
    """Kind of furniture."""

    word: Preposition = "on"
    """Position of things."""
    most: int = 1
    """Maximum number in one room."""
    opens: bool = False
    """It can be opened and closed; its content is hidden while closed."""
    cleans: bool = False
    """It cleans things."""
    heats: bool = False
    """It heats things."""
    cools: bool = False
    """It cools things."""
    lights: bool = False
    """It is a lamp and holds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThingKind:
    """Kind of thing that can be carried."""

    washable: bool = False
    """It can be dirty, and cleaned."""
    warms: bool = False
    """It can be heated and cooled."""
    slices: bool = False
    """It can be sliced."""
    cuts: bool = False
    """It slices other things."""
    readable: bool = False
    """It can be examined in good light."""


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
"""All kinds of furniture."""

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
"""All rooms with their furniture."""

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
"""All kinds of things."""
