"""Countdown: reach a target with three numbers, each added or subtracted once.

A try names the numbers in the order of the puzzle, each after its sign: `try + 6 - 4 + 8`. The player has three tries; after each,
it is told its value.
"""

import re
from collections.abc import Sequence
from itertools import combinations, product
from random import Random

from agentflow.trace import Task
from examples.library import Ask, Part, part_of

__all__ = ["LARGEST", "NUMBERS", "TRIES", "make_tasks", "play", "puzzle_of", "reply_to", "solutions"]

NUMBERS = range(1, 10)
"""The numbers of a puzzle."""
LARGEST = 24
"""Largest target."""
TRIES = 3
"""Number of tries."""
_TRY = re.compile(r"try((?: [-+] \d){3})")


def solutions(numbers: tuple[int, ...], target: int) -> list[tuple[str, ...]]:
    """Return the signs that reach the target: `solutions((6, 4, 8), 10) == [("+", "-", "+")]`."""
    return [signs for signs in product("+-", repeat=len(numbers)) if sum(_terms(signs, numbers)) == target]


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make puzzles; those of different parts differ in their numbers or in their target."""
    random = Random(f"countdown {part} {seed}")
    puzzles = [
        (numbers, target)
        for numbers in combinations(NUMBERS, 3)
        for target in range(1, LARGEST + 1)
        if part_of(f"{numbers} {target}") == part and solutions(numbers, target)
    ]
    tasks: list[Task] = []
    for index in range(count):
        numbers, target = random.choice(puzzles)
        shown = " ".join(map(str, random.sample(numbers, 3)))
        tasks.append(Task(index=index, id=f"{part}-{index}", question=f"numbers: {shown} target: {target}"))
    return tasks


def puzzle_of(question: str) -> tuple[tuple[int, ...], int]:
    """Return the numbers and the target of a question."""
    *numbers, target = map(int, re.findall(r"\d+", question))
    return tuple(numbers), target


def reply_to(question: str, answer: str) -> tuple[bool, str]:
    """Return whether an answer reaches the target, and what the player is told about it."""
    numbers, target = puzzle_of(question)
    found = _TRY.fullmatch(answer)
    if found is None:
        return False, "unreadable, again"
    words = found[1].split()
    if tuple(map(int, words[1::2])) != numbers:
        return False, "not these numbers, again"
    value = sum(_terms(words[::2], numbers))
    return value == target, f"value: {value} again"


async def play(task: Task, ask: Ask) -> float:
    """Play one puzzle; the reward is 1 if a try reaches the target.

    :param ask: asks the player.
    """
    messages = [{"role": "user", "content": task.question}]
    for _ in range(TRIES):
        answer = await ask(messages)
        right, told = reply_to(task.question, answer)
        if right:
            return 1.0
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]
    return 0.0


def _terms(signs: Sequence[str], numbers: Sequence[int]) -> list[int]:
    return [number if sign == "+" else -number for sign, number in zip(signs, numbers, strict=True)]
