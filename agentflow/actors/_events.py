"""What a supervisor tells its observer."""

from collections.abc import Callable
from dataclasses import dataclass

from agentflow.actors._exits import ExitReason


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child is ready."""

    supervisor: str
    """The supervisor's name."""
    child: str
    """The child's id."""


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child's task has ended, for whatever reason, ready or not."""

    supervisor: str
    """The supervisor's name."""
    child: str
    """The child's id."""
    reason: ExitReason
    """How it ended."""


@dataclass(frozen=True, slots=True)
class RestartPlanned:
    """Children are going to be started again."""

    supervisor: str
    """The supervisor's name."""
    children: tuple[str, ...]
    """Their ids, in the order of their start."""
    delay: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True)
class SupervisorEnding:
    """A supervisor is about to stop its children and end by itself."""

    supervisor: str
    """The supervisor's name."""
    reason: ExitReason
    """Why."""


SupervisorEvent = ChildStarted | ChildEnded | RestartPlanned | SupervisorEnding
"""Everything that an observer is told."""

Observer = Callable[[SupervisorEvent], None]
"""Called at each event, in order; must not block and must not raise."""
