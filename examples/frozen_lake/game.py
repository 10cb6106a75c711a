"""Frozen lake: walk from the upper left corner of a lake of ice to the lower right one, around the holes.

The walker sees the whole lake, with itself as `P`, and names up to three moves at a time: `go right right down`. A hole ends the walk.
"""

import re
from collections import deque
from random import Random

from agentflow.trace import Task
from examples.library import Ask, Part, part_of

__all__ = ["MOVES", "SIZE", "TURNS", "Lake", "make_tasks", "path_of", "play"]

SIZE, HOLES, TURNS = 4, 4, 3
"""Side of the lake, number of holes, and number of turns of a walk."""
MOVES = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
"""Moves: change of row and column."""
_GO = re.compile(rf"go((?: (?:{'|'.join(MOVES)})){{1,3}})")

Cell = tuple[int, int]
GOAL: Cell = (SIZE - 1, SIZE - 1)


class Lake:
    """A lake and the walker on it."""

    def __init__(self, holes: frozenset[Cell], place: Cell = (0, 0)) -> None:
        """:param place: cell of the walker."""
        self.holes = holes
        self.place = place

    @classmethod
    def of(cls, picture: str) -> "Lake":
        """Read the lake from its picture."""
        cells = {divmod(number, SIZE): cell for number, cell in enumerate(re.findall(r"[P.HG]", picture))}
        holes = frozenset(cell for cell, shown in cells.items() if shown == "H")
        return cls(holes, next((cell for cell, shown in cells.items() if shown == "P"), GOAL))

    def picture(self) -> str:
        """Return the lake in text: `P` walker, `.` ice, `H` hole, `G` goal."""

        def shown(cell: Cell) -> str:
            return "P" if cell == self.place else "H" if cell in self.holes else "G" if cell == GOAL else "."

        return " /".join("".join(f" {shown((row, column))}" for column in range(SIZE)) for row in range(SIZE))

    def walk(self, moves: list[str]) -> None:
        """Move; a hole or the goal ends it, and the edge stops a single move."""
        for move in moves:
            if self.place in self.holes or self.place == GOAL:
                return
            self.place = after(self.place, move)


def after(place: Cell, move: str) -> Cell:
    """Return the cell after a move."""
    row, column = place[0] + MOVES[move][0], place[1] + MOVES[move][1]
    return (row, column) if 0 <= row < SIZE and 0 <= column < SIZE else place


def path_of(lake: Lake) -> list[str]:
    """Return the shortest way to the goal, the first in the order of `MOVES`; empty: there is none."""
    found: dict[Cell, list[str]] = {lake.place: []}
    waiting = deque([lake.place])
    while waiting:
        place = waiting.popleft()
        for move in MOVES:
            there = after(place, move)
            if there not in found and there not in lake.holes:
                found[there] = [*found[place], move]
                waiting.append(there)
    return found.get(GOAL, [])


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make lakes with a way to the goal; those of different parts have different holes."""
    random = Random(f"frozen_lake {part} {seed}")
    cells = [divmod(number, SIZE) for number in range(1, SIZE * SIZE - 1)]
    tasks: list[Task] = []
    while len(tasks) < count:
        lake = Lake(frozenset(random.sample(cells, HOLES)))
        if part_of(lake.picture()) == part and path_of(lake):
            tasks.append(Task(index=len(tasks), id=f"{part}-{len(tasks)}", question=f"lake:{lake.picture()}"))
    return tasks


async def play(task: Task, ask: Ask) -> float:
    """Walk once; the reward is 1 at the goal.

    :param ask: asks the walker.
    """
    lake = Lake.of(task.question)
    messages = [{"role": "user", "content": task.question}]
    for _ in range(TURNS):
        answer = await ask(messages)
        if found := _GO.fullmatch(answer):
            lake.walk(found[1].split())
        if lake.place == GOAL:
            return 1.0
        if lake.place in lake.holes:
            return 0.0
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"lake:{lake.picture()}"},
        ]
    return 0.0
