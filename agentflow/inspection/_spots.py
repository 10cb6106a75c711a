"""Spots: the places of nodes in a tree, as the positions of a node and its ancestors."""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class _PlacedNode(Protocol):
    """Node of a tree, with or without its content."""

    @property
    def id(self) -> str: ...

    @property
    def parent(self) -> str | None: ...

    @property
    def position(self) -> int: ...


N = TypeVar("N", bound=_PlacedNode)


def nodes_by_spot(nodes: Sequence[N]) -> dict[str, N]:
    """Return the nodes by spot; parents precede their children."""
    spots: dict[str, str] = {}
    for node in nodes:
        spots[node.id] = "" if node.parent is None else child_of(spots[node.parent], node.position)
    return {spots[node.id]: node for node in nodes}


def sort_spots(spots: list[str]) -> None:
    """Sort by depth, then by positions."""
    together = "-".join(spots)
    if len(together) == 2 * together.count("-") + 1:
        # All positions have one digit: the order of texts is that of numbers, and a longer text is deeper.
        spots.sort()
        spots.sort(key=len)
    else:
        spots.sort(key=lambda spot: [*map(int, spot.split("-"))])
        spots.sort(key=depth_of)


def depth_of(spot: str) -> int:
    """Return the number of actions on the path to a node."""
    return spot.count("-") + 1 if spot else 0


def child_of(spot: str, position: int) -> str:
    """Return the spot of a child."""
    return f"{spot}-{position}" if spot else str(position)


def parent_of(spot: str) -> str:
    """Return the spot of the parent."""
    return spot.rpartition("-")[0]
