"""Worlds: their interface, the matching of actions, and the household."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.world.household import STEPS, Game, begin, facts

_ARTICLES = re.compile(r"\b(the|an?|my)\s+")


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Result of an action."""

    reward: float
    """Reward."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; `None` if the world does not report it."""


class World(ABC):
    """Episode in a world. Methods may block unless it is `quick`."""

    quick: ClassVar[bool] = False
    """True if no method blocks."""

    @property
    @abstractmethod
    def task(self) -> str:
        """Task in words."""

    @abstractmethod
    def tell(self) -> str:
        """Return the current observation in words."""

    def picture(self) -> bytes | None:
        """Render the current state as PNG, if it can be rendered."""
        return None

    @abstractmethod
    def actions(self) -> list[str]:
        """Return the legal actions."""

    def action_format(self) -> str | None:
        """Format of an action, if there is no list of them."""
        return None

    @abstractmethod
    def act(self, action: str) -> ActionResult:
        """Take an action.

        :raises ToolFailure: `bad_arguments`, if it is not legal; then nothing has changed.
        """

    @abstractmethod
    def digest(self) -> str:
        """Return a digest that is equal for equal states."""

    def facts(self) -> dict[str, dict[str, str]]:
        """Return the properties of everything in the world, hidden or not; empty if they are not known."""
        return {}

    @abstractmethod
    def copy(self) -> "World":
        """Return an independent copy.

        :raises CannotFork: if it can be neither copied nor repeated exactly.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the world."""


class HouseholdWorld(World):
    """Game in the household. It needs only Python, and never blocks."""

    quick = True

    def __init__(self, seed: int, task: str | None, steps: int | None) -> None:
        """Begin a game.

        :raises ToolFailure: `bad_arguments`, if there is no such kind of task.
        """
        try:
            self._game: Game = begin(seed, task, steps or STEPS)
        except ValueError as error:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"world: {error}.") from None

    @property
    def task(self) -> str:
        return self._game.goal.text

    def tell(self) -> str:
        return self._game.tell()

    def actions(self) -> list[str]:
        return self._game.actions()

    def act(self, action: str) -> ActionResult:
        actions = self.actions()
        self._game.act(actions[match_action(action, actions)])
        success = self._game.success
        return ActionResult(float(success), self._game.over, success)

    def digest(self) -> str:
        return self._game.digest()

    def facts(self) -> dict[str, dict[str, str]]:
        return facts(self._game.house)

    def copy(self) -> "HouseholdWorld":
        copied = copy(self)
        copied._game = self._game.copy()
        return copied

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def match_action(action: str, actions: Sequence[str]) -> int:
    """Return the index of an action given by its words, or by its number from 0.

    :raises ToolFailure: `bad_arguments`, with the nearest legal one.
    """
    wanted = action.strip()
    if wanted.isdecimal() and len(wanted) < 10:
        if int(wanted) < len(actions):
            return int(wanted)
        message = f"world_act: there is no action {wanted}: they count from 0 to {len(actions) - 1}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    plain = _plain(wanted)
    for index, legal in enumerate(actions):
        if _plain(legal) == plain:
            return index
    message = f"world_act: {wanted[:200]!r} is not possible now.{did_you_mean(wanted, actions)}"
    raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)


def _plain(action: str) -> str:
    """Normalize an action: articles, capitals and `into` for `in` do not matter."""
    words = _ARTICLES.sub("", " ".join(action.lower().rstrip(".!").split()))
    return words.replace(" into ", " in ").replace(" onto ", " on ").replace(" in ", " on ")
