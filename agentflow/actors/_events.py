"""Exit reasons of children, and the events that a supervisor reports to its observer."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agentflow.actors._errors import Shutdown


class ExitKind(StrEnum):
    """Kind of an exit. See docs/actors.md."""

    NORMAL = "normal"
    """The child was done."""
    SHUTDOWN = "shutdown"
    """The child ended when asked, or deliberately by raising `Shutdown`."""
    KILLED = "killed"
    """The child was cancelled without being asked, or because it took too long to end."""
    CRASHED = "crashed"
    """The child raised an exception."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Reason of a child's end. See docs/actors.md."""

    kind: ExitKind
    """Kind of the exit."""
    detail: str = ""
    """Further details in one line."""
    error: Exception | None = None
    """Exception that ended the child."""

    @property
    def abnormal(self) -> bool:
        """Return true if a transient child is restarted."""
        return self.kind in (ExitKind.KILLED, ExitKind.CRASHED)

    @classmethod
    def of(cls, error: Exception) -> "ExitReason":
        """Return the exit reason for an exception that left a child."""
        if isinstance(error, Shutdown):
            return cls(ExitKind.SHUTDOWN, str(error), error)
        return cls(ExitKind.CRASHED, f"{type(error).__name__}: {error}", error)

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else str(self.kind)


NORMAL = ExitReason(ExitKind.NORMAL)
SHUTDOWN = ExitReason(ExitKind.SHUTDOWN)
KILLED = ExitReason(ExitKind.KILLED)


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child is ready. See docs/actors.md."""

    supervisor: str
    """Name of the supervisor."""
    child: str
    """Id of the child."""


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child's task has ended, for any reason, ready or not. See docs/actors.md."""

    supervisor: str
    """Name of the supervisor."""
    child: str
    """Id of the child."""
    reason: ExitReason
    """Exit reason."""


@dataclass(frozen=True, slots=True)
class RestartPlanned:
    """Children are about to be restarted. See docs/actors.md."""

    supervisor: str
    """Name of the supervisor."""
    children: tuple[str, ...]
    """Their ids, in the order of their start."""
    delay: float
    """Seconds until the restart."""


@dataclass(frozen=True, slots=True)
class SupervisorEnding:
    """A supervisor is about to stop its children and end by itself. See docs/actors.md."""

    supervisor: str
    """Name of the supervisor."""
    reason: ExitReason
    """Exit reason."""


SupervisorEvent = ChildStarted | ChildEnded | RestartPlanned | SupervisorEnding
"""Any event of a supervisor."""

Observer = Callable[[SupervisorEvent], None]
"""Called for each event, in order; it must not block or raise."""
