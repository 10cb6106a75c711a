"""The household as a world."""

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.world._choosing import chosen
from mcp_servers.world._world import Outcome
from mcp_servers.world.household import STEPS, Game, begin

__all__ = ["HouseholdWorld", "household"]


class HouseholdWorld:
    """A game in the household. Needs nothing but Python, and never takes long."""

    quick = True

    def __init__(self, game: Game) -> None:
        self._game = game

    @property
    def task(self) -> str:
        """What is to be done, in words."""
        return self._game.goal.text

    def tell(self) -> str:
        """What can be seen now, in words."""
        return self._game.tell()

    def picture(self) -> bytes | None:
        """There is none: it is told in words only."""
        return None

    def actions(self) -> list[str]:
        """What can be done now."""
        return self._game.actions()

    def action_format(self) -> str | None:
        """Every action is in the list."""
        return None

    def act(self, action: str) -> Outcome:
        """Do one of the actions."""
        actions = self._game.actions()
        self._game.act(actions[chosen(action, actions)])
        success = self._game.success
        return Outcome(float(success), self._game.over, success)

    def digest(self) -> str:
        """The same for the same state."""
        return self._game.digest()

    def copy(self) -> "HouseholdWorld":
        """An independent copy."""
        return HouseholdWorld(self._game.copy())

    def close(self) -> None:
        """There is nothing to give back."""


def household(seed: int, task: str | None, steps: int | None) -> HouseholdWorld:
    """The household of a seed.

    :raises ToolFailure: `bad_arguments`, if there is no such kind of task.
    """
    try:
        return HouseholdWorld(begin(seed, task, steps or STEPS))
    except ValueError as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"world: {error}.") from None
