"""A scripted agent that can repair files, and has bad habits."""

from random import Random

from examples.library import Messages
from examples.terminal.game import OPERATORS

__all__ = ["teach"]

BLIND, WRONG, EARLY, UNKNOWN = 0.3, 0.3, 0.15, 0.2
"""Shares of repairs without a look at the file, with any operator, of turns that end too early, and with no known command."""


def teach(messages: Messages, random: Random) -> str:
    """Return the next command."""
    file, _, aim = messages[0]["content"].split()
    shown = next((each["content"] for each in messages[2::2] if each["content"].startswith("print")), "")
    if messages[-1]["content"] == "ok" or random.random() < EARLY:
        return "done"
    if random.random() < UNKNOWN:
        return f"peek {file}"
    if not shown and random.random() > BLIND:
        return f"cat {file}"
    wrong = shown.split()[1] if shown else random.choice(list(OPERATORS.values()))
    right = random.choice(list(OPERATORS.values())) if random.random() < WRONG else OPERATORS[aim]
    return f"sed -i s/{wrong}/{right}/ {file}"
