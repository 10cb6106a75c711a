"""A scripted walker that knows the way, and has bad habits."""

from random import Random

from examples.frozen_lake.game import MOVES, Lake, path_of
from examples.library import Messages

__all__ = ["teach"]

UNREADABLE, STRAY, SHORT = 0.2, 0.35, 0.3
"""Shares of turns without readable moves, with one move in any direction, and with one move only."""


def teach(messages: Messages, random: Random) -> str:
    """Return the next moves."""
    moves = path_of(Lake.of(messages[-1]["content"]))[:3]
    if random.random() < SHORT:
        moves = moves[:1]
    if random.random() < STRAY:
        moves[random.randrange(len(moves))] = random.choice(list(MOVES))
    if random.random() < UNREADABLE:
        return f"walk {' '.join(moves)}"
    return f"go {' '.join(moves)}"
