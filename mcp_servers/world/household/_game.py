"""A household with a task: begun from a seed, played to its end."""

import hashlib
from dataclasses import astuple, dataclass, replace
from random import Random

from mcp_servers.world.household._goals import TASKS, Goal, choose
from mcp_servers.world.household._house import House, build
from mcp_servers.world.household._rules import act, actions
from mcp_servers.world.household._words import tell

__all__ = ["STEPS", "Game", "begin"]

STEPS = 100
"""Actions that there are for a task."""

ATTEMPTS = 1_000


@dataclass(slots=True)
class Game:
    """A task being done. The same seed, task and actions always lead to the same state, in every process."""

    house: House
    """The household."""
    goal: Goal
    """What is to be done."""
    steps: int = 0
    """Actions that were done."""
    limit: int = STEPS
    """Actions that there are."""
    said: str = ""
    """What came of the last one."""

    @property
    def success(self) -> bool:
        """The task is done."""
        return self.goal.reached(self.house)

    @property
    def over(self) -> bool:
        """Nothing more can be done: the task is done, or there are no more actions."""
        return self.steps >= self.limit or self.success

    def actions(self) -> list[str]:
        """What can be done now."""
        return [] if self.over else actions(self.house)

    def act(self, action: str) -> None:
        """Do one of the actions."""
        self.said = act(self.house, action)
        self.steps += 1

    def tell(self) -> str:
        """What came of the last action, and what can be seen now."""
        return f"{self.said}\n{tell(self.house)}".strip()

    def copy(self) -> "Game":
        """An independent copy."""
        return replace(self, house=self.house.copy())

    def digest(self) -> str:
        """The same for the same state, and for no other."""
        house = self.house
        state = (
            house.room,
            house.at,
            sorted(house.examined),
            [astuple(one) for one in house.furniture.values()],
            [astuple(one) for one in house.things.values()],
            astuple(self.goal),
            self.steps,
            self.said,
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()


def begin(seed: int, task: str | None = None, limit: int = STEPS) -> Game:
    """The household and the task of a seed.

    :param task: the kind of task; by default the seed decides.
    :raises ValueError: if there is no such kind.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"no task {task!r}; there are {', '.join(TASKS)}")
    # Seeded by text: Python hashes it the same way in every process.
    random = Random(f"household {seed} {task or ''}")
    for _ in range(ATTEMPTS):
        chosen = task or random.choice(list(TASKS))
        house = build(random)
        goal = choose(random, house, chosen)
        if goal is not None:
            return Game(house, goal, limit=limit)
    raise AssertionError(f"no household with a task {task!r} was found for seed {seed}")
