"""A household told in words: rooms, containers, things with states, and tasks made from seeds."""

from mcp_servers.world.household._game import STEPS, Game, begin
from mcp_servers.world.household._goals import TASKS, Goal
from mcp_servers.world.household._house import Furniture, House, Thing

__all__ = ["STEPS", "TASKS", "Furniture", "Game", "Goal", "House", "Thing", "begin"]
