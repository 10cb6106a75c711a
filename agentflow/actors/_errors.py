"""Errors of actors and supervisors, exit reasons of children, and the events that a supervisor reports to its observer.

::

    AgentFlowError
    └── ActorError
        ├── ChannelClosed           this end is closed, or all ends on the other side are
        │   └── ChannelEnded        every sender is closed and every message was received
        ├── WouldBlock              a `*_nowait` operation would have had to wait
        ├── ActorGone               the actor has ended; carries its exit reason
        ├── AskTimeout              no answer within the deadline (also a `TimeoutError`)
        ├── StartFailed             a child did not become ready; carries the reason
        │   └── StartTimeout        … within its time limit (also a `TimeoutError`)
        ├── ProcessEnded            a child process ended with a non-zero status
        ├── SupervisorGone          the supervisor has ended
        ├── UnknownChild            no child of that name (also a `KeyError`)
        ├── ChildExists             a child of that name exists
        ├── ChildActive             the child runs or is being restarted
        └── Shutdown                raised by a child to end deliberately
            └── RestartLimitReached more restarts than allowed; raised by a supervisor
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agentflow.errors import AgentFlowError


class ActorError(AgentFlowError):
    """Base class of the kernel's errors."""


class ChannelClosed(ActorError):
    """This end of the channel is closed, or all ends on the other side are.

    :raises: by sending and receiving.
    """


class ChannelEnded(ChannelClosed, StopAsyncIteration):
    """Every sender is closed and every message was received; it ends an `async for`.

    :raises: by receiving.
    """


class WouldBlock(ActorError):
    """The operation would have to wait.

    :raises: by `send_nowait` on a full channel and `receive_nowait` on an empty one.
    """


class ActorGone(ActorError):
    """The actor has ended, or ended before it answered.

    :raises: by `tell` and `ask`.
    """

    def __init__(self, actor: str, reason: "ExitReason | None") -> None:
        super().__init__(f"{actor} has ended: {reason or 'it is stopping'}")
        self.reason = reason
        """Exit reason; `None` while the actor is stopping."""


class AskTimeout(ActorError, TimeoutError):
    """No answer within the deadline. An actor that is already handling the message continues.

    :raises: by `ask`.
    """


class StartFailed(ActorError):
    """A child did not become ready.

    :raises: by starting a supervisor, by `start_child` and `restart_child`.
    """

    def __init__(self, child: str, why: "ExitReason | str") -> None:
        super().__init__(f"{child} did not start: {why}")
        self.child = child
        """Id of the child."""
        self.why = why
        """Exit reason, or one line on the problem."""


class StartTimeout(StartFailed, TimeoutError):
    """A child was not ready in time.

    :raises: as `StartFailed`.
    """


class ProcessEnded(ActorError):
    """A child process ended with a non-zero status.

    :raises: inside the child; a supervisor sees it as the error of its exit reason.
    """

    def __init__(self, program: str, status: int) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        super().__init__(f"{program} ended with {how}")
        self.status = status
        """Exit status; `-n` if signal `n` ended it."""


class SupervisorGone(ActorError):
    """The supervisor has ended, possibly before it handled the request.

    :raises: by every request to a supervisor.
    """


class UnknownChild(ActorError, KeyError):
    """The supervisor has no child of that name.

    :raises: by every request that names a child.
    """

    def __str__(self) -> str:
        return str(self.args[0])


class ChildExists(ActorError):
    """A child of that name exists, running or not.

    :raises: by `start_child`.
    """


class ChildActive(ActorError):
    """The child runs or is being restarted.

    :raises: by `restart_child` and `delete_child`.
    """


class Shutdown(ActorError):
    """Raised by a child to end deliberately: a transient child is then not restarted.

    :raises: by the child itself.
    """


class RestartLimitReached(Shutdown):
    """More restarts than allowed; all children were stopped.

    :raises: by leaving a supervisor's `async with`; a parent supervisor sees it as a shutdown.
    """


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
