"""How a child ended."""

from dataclasses import dataclass
from enum import StrEnum

from agentflow.actors._errors import Shutdown


class ExitKind(StrEnum):
    """The ways to end."""

    NORMAL = "normal"
    """It was done."""
    SHUTDOWN = "shutdown"
    """It was asked to end and did, or it ended on purpose by raising `Shutdown`."""
    KILLED = "killed"
    """It was cancelled without being asked, or because it took too long to end."""
    CRASHED = "crashed"
    """An exception ended it."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a child ended."""

    kind: ExitKind
    """The way it ended."""
    detail: str = ""
    """One line more, if there is something to say."""
    error: Exception | None = None
    """The exception that ended it."""

    @property
    def abnormal(self) -> bool:
        """Whether a transient child is restarted after it."""
        return self.kind in (ExitKind.KILLED, ExitKind.CRASHED)

    @classmethod
    def of(cls, error: Exception) -> "ExitReason":
        """What an exception that left a child means."""
        if isinstance(error, Shutdown):
            return cls(ExitKind.SHUTDOWN, str(error), error)
        return cls(ExitKind.CRASHED, f"{type(error).__name__}: {error}", error)

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else str(self.kind)


NORMAL = ExitReason(ExitKind.NORMAL)
SHUTDOWN = ExitReason(ExitKind.SHUTDOWN)
KILLED = ExitReason(ExitKind.KILLED)
