"""A household told in words: rooms, containers, things with states, and tasks made from seeds.

`register()` makes it known to Gymnasium as `agentflow/household-v0`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mcp_servers.world.household._game import STEPS, Game, begin
from mcp_servers.world.household._goals import TASKS, Goal
from mcp_servers.world.household._house import Furniture, House, Thing

if TYPE_CHECKING:
    from mcp_servers.world.household._env import HouseholdEnv, register

__all__ = [
    "STEPS",
    "TASKS",
    "Furniture",
    "Game",
    "Goal",
    "House",
    "HouseholdEnv",
    "Thing",
    "begin",
    "register",
]


def __getattr__(name: str) -> object:
    """Load what needs Gymnasium when it is first used."""
    if name not in ("HouseholdEnv", "register"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module("mcp_servers.world.household._env"), name)
    return found
