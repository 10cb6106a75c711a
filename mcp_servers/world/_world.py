"""What a world promises to the tools, whatever it is made of."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Outcome", "World"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action."""

    reward: float
    """What it was worth."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; `None`: the world does not say."""


class World(Protocol):
    """One episode in one world. Its methods may block, but for those of a `quick` one."""

    @property
    def quick(self) -> bool:
        """Nothing in it takes long."""
        ...

    @property
    def task(self) -> str:
        """What is to be done, in words."""
        ...

    def tell(self) -> str:
        """What can be seen now, in words."""
        ...

    def picture(self) -> bytes | None:
        """What can be seen now, as PNG, if it can be drawn."""
        ...

    def actions(self) -> list[str]:
        """What can be done now."""
        ...

    def action_format(self) -> str | None:
        """How an action is written, where there is no list of them."""
        ...

    def act(self, action: str) -> Outcome:
        """Do something.

        :raises ToolFailure: `bad_arguments`, if it can't be done now; then nothing has changed.
        """
        ...

    def digest(self) -> str:
        """The same for the same state."""
        ...

    def copy(self) -> "World":
        """An independent copy.

        :raises CannotFork: if it can be neither copied nor repeated exactly.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
