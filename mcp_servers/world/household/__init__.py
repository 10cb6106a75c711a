"""Text household: rooms, containers, things with states, and tasks generated from seeds.

`register()` makes it available to Gymnasium as `agentflow/household-v0`.
"""

from typing import TYPE_CHECKING

from mcp_servers.world.household._game import HOUSEHOLD, STEPS, Game, begin, facts
from mcp_servers.world.household._goals import TASKS, Goal
from mcp_servers.world.household._house import Furniture, House, Thing
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from mcp_servers.world.household._env import HouseholdEnv, register

__all__ = [
    "HOUSEHOLD",
    "STEPS",
    "TASKS",
    "Furniture",
    "Game",
    "Goal",
    "House",
    "HouseholdEnv",
    "Thing",
    "begin",
    "facts",
    "register",
]


# Only these need Gymnasium.
__getattr__ = lazy_exports(__name__, {"._env": ["HouseholdEnv", "register"]})
