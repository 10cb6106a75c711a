"""A coding agent in a terminal: a file computes with the wrong operator; find it, and put the right one in its place.

The agent writes one command at a time, which a shell runs in a workspace of its own, and ends with `done`. The file is then tested.
"""

import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeAlias

from agentflow.trace import Task
from examples.library import Ask, Part, part_of

__all__ = [
    "OPERATORS",
    "TURNS",
    "Run",
    "SimulatedShell",
    "first_content",
    "make_tasks",
    "play",
    "test_command",
]

Run: TypeAlias = Callable[[str], Awaitable[str]]
"""Runs a command; returns its output."""
TURNS = 4
"""Number of turns."""
OPERATORS: Final = {"add": "+", "subtract": "-", "modulo": "%", "multiply": "*"}
"""Operators by the aim of a file."""
_FILES = [
    "bill",
    "cart",
    "cost",
    "game",
    "goal",
    "jobs",
    "loan",
    "mean",
    "pool",
    "rate",
    "rent",
    "sale",
    "shop",
    "tank",
    "team",
    "trip",
    "unit",
    "wage",
    "yard",
    "zone",
]
_SED = re.compile(r"sed -i s/(\S)/(\S)/ (\S+)")
_EXAMPLE = (12, 5)


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make tasks; those of different parts have another file, aim, or wrong operator."""
    random = Random(f"terminal {part} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        file, aim = random.choice(_FILES), random.choice(list(OPERATORS))
        wrong = random.choice([each for each in OPERATORS.values() if each != OPERATORS[aim]])
        if part_of(f"{file} {aim} {wrong}") == part:
            task = Task(
                index=len(tasks),
                id=f"{part}-{len(tasks)}",
                question=f"{file} should {aim}",
                metadata={"file": file, "aim": aim, "wrong": wrong},
            )
            tasks.append(task)
    return tasks


def first_content(task: Task) -> str:
    """Return the content of the file before it is repaired."""
    return f"print(a {task.metadata['wrong']} b)"


def test_command(task: Task) -> str:
    """Return the command that tests a file: it prints `passed`."""
    one, other = _EXAMPLE
    values = {"add": one + other, "subtract": one - other, "modulo": one % other, "multiply": one * other}
    code = f"a, b = {one}, {other}; exec(open('{task.metadata['file']}').read())"
    return f'test "$(python3 -c "{code}")" = {values[task.metadata["aim"]]} && echo passed'


async def play(task: Task, ask: Ask, run: Run) -> float:
    """Repair one file; the reward is 1 if it passes its test.

    :param ask: asks the agent.
    :param run: the terminal.
    """
    await run(f"echo '{first_content(task)}' > {task.metadata['file']}")
    messages = [{"role": "user", "content": task.question}]
    for _ in range(TURNS):
        answer = await ask(messages)
        if answer == "done":
            break
        # Of an error only its reason: `No such file or directory`.
        told = (await run(answer)).strip().rpartition(": ")[2][:60] or "ok"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]
    return float(await run(test_command(task)) == "passed\n")


class SimulatedShell:
    """A terminal for the teacher: it knows `cat`, `sed -i` and the test, and answers as the real one does."""

    def __init__(self, task: Task) -> None:
        """:param task: its task."""
        self._task = task
        self._file: str = task.metadata["file"]
        self._content = first_content(task)

    async def run(self, command: str) -> str:
        """Run a command."""
        if command.startswith("echo "):
            return ""
        if command == test_command(self._task):
            right = self._content == f"print(a {OPERATORS[self._task.metadata['aim']]} b)"
            return "passed\n" if right else ""
        if command.startswith("cat "):
            file = command.removeprefix("cat ")
            return f"{self._content}\n" if file == self._file else f"cat: {file}: No such file or directory\n"
        found = _SED.fullmatch(command)
        if found is None:
            return f"bash: line 1: {command.partition(' ')[0]}: command not found\n"
        if found[3] != self._file:
            return f"sed: can't read {found[3]}: No such file or directory\n"
        self._content = self._content.replace(found[1], found[2], 1)
        return ""
