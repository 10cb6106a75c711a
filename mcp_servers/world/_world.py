"""World contract."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Result of an action."""

    reward: float
    """Reward."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; `None` if the world does not report it."""


class World(Protocol):
    """Episode in a world. Methods may block unless it is `quick`."""

    @property
    def quick(self) -> bool:
        """True if no method blocks."""
        ...

    @property
    def task(self) -> str:
        """Task in words."""
        ...

    def tell(self) -> str:
        """Return the current observation in words."""
        ...

    def picture(self) -> bytes | None:
        """Render the current state as PNG, if it can be rendered."""
        ...

    def actions(self) -> list[str]:
        """Return the legal actions."""
        ...

    def action_format(self) -> str | None:
        """Format of an action, if there is no list of them."""
        ...

    def act(self, action: str) -> ActionResult:
        """Take an action.

        :raises ToolFailure: `bad_arguments`, if it is not legal; then nothing has changed.
        """
        ...

    def digest(self) -> str:
        """Return a digest that is equal for equal states."""
        ...

    def copy(self) -> "World":
        """Return an independent copy.

        :raises CannotFork: if it can be neither copied nor repeated exactly.
        """
        ...

    def close(self) -> None:
        """Close the world."""
        ...
