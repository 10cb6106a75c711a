"""Household as a world."""

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.world._action_matching import match_action
from mcp_servers.world._world import ActionResult
from mcp_servers.world.household import STEPS, Game, begin


class HouseholdWorld:
    """Game in the household. It needs only Python, and never blocks."""

    quick = True

    def __init__(self, game: Game) -> None:
        self._game = game

    @property
    def task(self) -> str:
        """Task in words."""
        return self._game.goal.text

    def tell(self) -> str:
        """Return the current observation in words."""
        return self._game.tell()

    def picture(self) -> bytes | None:
        """Return `None`: the household has no pictures."""
        return None

    def actions(self) -> list[str]:
        """Return the legal actions."""
        return self._game.actions()

    def action_format(self) -> str | None:
        """Return `None`: every action is listed."""
        return None

    def act(self, action: str) -> ActionResult:
        """Take one of the actions."""
        actions = self._game.actions()
        self._game.act(actions[match_action(action, actions)])
        success = self._game.success
        return ActionResult(float(success), self._game.over, success)

    def digest(self) -> str:
        """Return a digest that is equal for equal states."""
        return self._game.digest()

    def copy(self) -> "HouseholdWorld":
        """Return an independent copy."""
        return HouseholdWorld(self._game.copy())

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def household(seed: int, task: str | None, steps: int | None) -> HouseholdWorld:
    """Return the household of a seed.

    :raises ToolFailure: `bad_arguments`, if there is no such kind of task.
    """
    try:
        return HouseholdWorld(begin(seed, task, steps or STEPS))
    except ValueError as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"world: {error}.") from None
