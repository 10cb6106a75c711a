"""Math with a code tool: word problems, and Python for the computation.

The solver writes an expression (`run 7 * 8 - 5`), which Python computes, and then its answer (`answer 51`). It has three turns.
"""

import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from agentflow.trace import Task
from examples.library import Ask, Part, part_of

__all__ = ["LARGEST", "SIGNS", "TURNS", "Run", "expression_of", "make_tasks", "play", "value_of"]

Run: TypeAlias = Callable[[str], Awaitable[str]]
"""Computes an expression; returns its value, or `error`."""
NUMBERS = range(2, 13)
LARGEST = NUMBERS[-1] ** 2 + NUMBERS[-1]
"""Largest value."""
TURNS = 3
"""Number of turns."""
SIGNS = {"finds": "+", "buys": "+", "gets": "+", "eats": "-", "sells": "-", "loses": "-"}
"""Verbs of the problems, and the signs that they stand for."""
_NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"]
_THINGS = ["apples", "pears", "figs", "nuts", "plums", "dates"]
_HOLDERS = ["bags", "boxes", "bowls", "jars"]
_EXPRESSION = re.compile(r"(\d+) \* (\d+) ([+-]) (\d+)")


def expression_of(question: str) -> str:
    """Return the expression that a problem asks for."""
    one, other, more = re.findall(r"\d+", question)
    sign = next(sign for verb, sign in SIGNS.items() if f" {verb} " in question)
    return f"{one} * {other} {sign} {more}"


def value_of(expression: str) -> str:
    """Compute a product and a sum as Python does: `value_of("7 * 8 - 5") == "51"`; anything else is an `error`."""
    found = _EXPRESSION.fullmatch(expression)
    if found is None:
        return "error"
    one, other, more = int(found[1]), int(found[2]), int(found[4])
    return str(one * other + (more if found[3] == "+" else -more))


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make problems with a positive answer; those of different parts have different expressions."""
    random = Random(f"math_tool {part} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        name, holder, thing, verb = (random.choice(each) for each in (_NAMES, _HOLDERS, _THINGS, list(SIGNS)))
        one, other, more = (random.choice(NUMBERS) for _ in range(3))
        question = f"{name} has {one} {holder} of {other} {thing} and {verb} {more} . how many ?"
        expression = expression_of(question)
        answer = value_of(expression)
        if int(answer) > 0 and part_of(expression) == part:
            tasks.append(
                Task(index=len(tasks), id=f"{part}-{len(tasks)}", question=question, references=(answer,))
            )
    return tasks


async def play(task: Task, ask: Ask, run: Run) -> float:
    """Solve one problem; the reward is 1 for the right answer.

    :param ask: asks the solver.
    :param run: the tool.
    """
    messages = [{"role": "user", "content": task.question}]
    for _ in range(TURNS):
        answer = await ask(messages)
        verb, _, rest = answer.partition(" ")
        if verb == "answer":
            return float(rest in task.references)
        told = f"value: {await run(rest)}" if verb == "run" else "value: error"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]
    return 0.0
