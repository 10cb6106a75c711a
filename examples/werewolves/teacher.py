"""Scripted players: villagers that follow others, and wolves that betray each other."""

from random import Random

from examples.library import Messages

__all__ = ["teach"]

FOLLOW, BETRAY, UNREADABLE, SPARE = 0.6, 0.6, 0.2, 0.5
"""Shares of villagers' votes that repeat the last one, of wolves' votes for their partner, of wolves' votes that are
unreadable, and of nights on which they name their partner."""


def teach(messages: Messages, random: Random) -> str:
    """Return the vote, or the victim."""
    head, _, votes = messages[-1]["content"].partition(" votes ")
    words = head.split()
    me, others = words[1], words[words.index("others") + 1 :]
    cast = [each for each in votes.split() if each != me]
    if words[0] == "villager":
        return f"vote {cast[-1] if cast and random.random() < FOLLOW else random.choice(others)}"
    partner = words[3]
    if "night" in words:
        return f"kill {partner if random.random() < SPARE else random.choice(others)}"
    if random.random() < UNREADABLE:
        return f"accuse {random.choice(others)}"
    return f"vote {partner if random.random() < BETRAY else random.choice(others)}"
