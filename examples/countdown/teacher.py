"""A scripted player that searches with the values of its tries, and has bad habits."""

from itertools import product
from random import Random

from examples.countdown.game import puzzle_of, solutions
from examples.library import Messages

__all__ = ["teach"]

UNREADABLE, TWICE, AGAIN, GUESS = 0.3, 0.2, 0.15, 0.5
"""Shares of tries that are no expression, use a number twice, repeat the try before, or have random signs."""


def teach(messages: Messages, random: Random) -> str:
    """Return the next try: all numbers added, and then the solution, because its value shows what to subtract."""
    numbers, target = puzzle_of(messages[0]["content"])
    if len(messages) > 1 and random.random() < AGAIN:
        return messages[-2]["content"]
    known = any(f"value: {sum(numbers)} " in each["content"] for each in messages[1:])
    signs = solutions(numbers, target)[0] if known else "+++"
    if random.random() < GUESS:
        signs = random.choice(list(product("+-", repeat=3)))
    words = [f"{sign} {number}" for sign, number in zip(signs, numbers, strict=True)]
    habit = random.random()
    if habit < UNREADABLE:
        words.append("=")
    elif habit < UNREADABLE + TWICE:
        words[2] = words[1]
    return f"try {' '.join(words)}"
