"""Game: a household with a task, generated from a seed."""

import hashlib
from dataclasses import astuple, dataclass, replace
from random import Random

from mcp_servers.world.household._description import tell
from mcp_servers.world.household._goals import TASKS, Goal, choose
from mcp_servers.world.household._house import House, build
from mcp_servers.world.household._rules import act, actions

STEPS = 100
"""Maximum number of actions."""

ATTEMPTS = 1_000


@dataclass(slots=True)
class Game:
    """Running task. The same seed, task and actions always lead to the same state, in every process."""

    house: House
    """Household."""
    goal: Goal
    """Goal."""
    steps: int = 0
    """Number of actions taken."""
    limit: int = STEPS
    """Maximum number of actions."""
    said: str = ""
    """Result of the last action."""

    @property
    def success(self) -> bool:
        """True if the task is done."""
        return self.goal.reached(self.house)

    @property
    def over(self) -> bool:
        """True if the task is done, or no actions are left."""
        return self.steps >= self.limit or self.success

    def actions(self) -> list[str]:
        """Return the legal actions."""
        return [] if self.over else actions(self.house)

    def act(self, action: str) -> None:
        """Take one of the actions."""
        self.said = act(self.house, action)
        self.steps += 1

    def tell(self) -> str:
        """Return the result of the last action and the current observation."""
        return f"{self.said}\n{tell(self.house)}".strip()

    def copy(self) -> "Game":
        """Return an independent copy."""
        return replace(self, house=self.house.copy())

    def digest(self) -> str:
        """Return a digest that is equal for equal states only."""
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
    """Return the household and the task of a seed.

    :param task: the kind of task; by default the seed decides.
    :raises ValueError: if there is no such kind.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"no task {task!r}; there are {', '.join(TASKS)}")
    # A text seed: Python hashes it the same way in every process.
    random = Random(f"household {seed} {task or ''}")
    for _ in range(ATTEMPTS):
        chosen = task or random.choice(list(TASKS))
        house = build(random)
        goal = choose(random, house, chosen)
        if goal is not None:
            return Game(house, goal, limit=limit)
    raise AssertionError(f"no household with a task {task!r} was found for seed {seed}")
