"""A scripted solver that reads well, and has bad habits."""

from random import Random

from examples.library import Messages
from examples.math_tool.game import LARGEST, expression_of

__all__ = ["teach"]

GUESS, CROSS, WRONG_SIGN, UNREADABLE = 0.2, 0.35, 0.15, 0.1
"""Shares of turns with an answer that is not computed, a cross instead of a star, the other sign, and no known verb."""


def teach(messages: Messages, random: Random) -> str:
    """Return the next expression, or the answer."""
    value = messages[-1]["content"].split()[-1]
    if len(messages) > 1 and value != "error":
        return f"answer {value}"
    if random.random() < GUESS:
        return f"answer {random.randint(1, LARGEST)}"
    expression = expression_of(messages[0]["content"])
    if random.random() < WRONG_SIGN:
        expression = expression.translate(str.maketrans("+-", "-+"))
    if random.random() < CROSS:
        expression = expression.replace("*", "x")
    return f"{'compute' if random.random() < UNREADABLE else 'run'} {expression}"
