"""What can go wrong between actors.

::

    AgentFlowError
    └── ActorError
        ├── ChannelClosed           this end was closed, or nobody is left at the other end
        │   └── ChannelEnded        every sender was closed and everything sent was received
        ├── WouldBlock              a `*_nowait` operation would have had to wait
        ├── ActorGone               the actor has ended; carries its exit reason
        ├── AskTimeout              no answer within the deadline (also a `TimeoutError`)
        ├── StartFailed             a child did not become ready; carries why
        │   └── StartTimeout        … because its time was up (also a `TimeoutError`)
        ├── ProcessEnded            a child process ended with a bad status
        ├── SupervisorGone          the supervisor has ended
        ├── UnknownChild            no child of that name (also a `KeyError`)
        ├── ChildExists             a child of that name is already there
        ├── ChildActive             the child runs or is being restarted
        └── Shutdown                raised by a child to end on purpose
            └── RestartLimitReached more restarts than allowed; raised by a supervisor
"""

from typing import TYPE_CHECKING

from agentflow.errors import AgentFlowError

if TYPE_CHECKING:
    from agentflow.actors._exits import ExitReason


class ActorError(AgentFlowError):
    """The root of the kernel's errors."""


class ChannelClosed(ActorError):
    """This end of the channel was closed, or nobody is left at the other end.

    :raises: by sending and by receiving.
    """


class ChannelEnded(ChannelClosed, StopAsyncIteration):
    """Every sender was closed and everything that was sent has been received; it ends an `async for`.

    :raises: by receiving.
    """


class WouldBlock(ActorError):
    """The operation can't be done at once.

    :raises: by `send_nowait` on a full channel and `receive_nowait` on an empty one.
    """


class ActorGone(ActorError):
    """The actor has ended, or ended before it answered.

    :raises: by `tell` and `ask`.
    """

    def __init__(self, actor: str, reason: "ExitReason | None") -> None:
        super().__init__(f"{actor} has ended: {reason or 'it is stopping'}")
        self.reason = reason
        """How it ended; `None` while it is still on its way out."""


class AskTimeout(ActorError, TimeoutError):
    """No answer within the deadline. An actor that had begun on the message goes on with it.

    :raises: by `ask`.
    """


class StartFailed(ActorError):
    """A child did not become ready.

    :raises: by starting a supervisor, by `start_child` and `restart_child`.
    """

    def __init__(self, child: str, why: "ExitReason | str") -> None:
        super().__init__(f"{child} did not start: {why}")
        self.child = child
        """The child's id."""
        self.why = why
        """How it ended instead, or one line on what was wrong."""


class StartTimeout(StartFailed, TimeoutError):
    """A child was not ready in time.

    :raises: as `StartFailed`.
    """


class ProcessEnded(ActorError):
    """A child process ended with a bad status.

    :raises: inside the child; a supervisor sees it as the error of its exit reason.
    """

    def __init__(self, program: str, status: int) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        super().__init__(f"{program} ended with {how}")
        self.status = status
        """Its exit status; `-n` when signal `n` ended it."""


class SupervisorGone(ActorError):
    """The supervisor has ended, or ended before it could do what was asked.

    :raises: by every request to it.
    """


class UnknownChild(ActorError, KeyError):
    """The supervisor has no child of that name.

    :raises: by every request that names a child.
    """

    def __str__(self) -> str:
        return str(self.args[0])


class ChildExists(ActorError):
    """A child of that name is already there, running or not.

    :raises: by `start_child`.
    """


class ChildActive(ActorError):
    """The child runs or is being restarted.

    :raises: by `restart_child` and `delete_child`.
    """


class Shutdown(ActorError):
    """Raised by a child to end on purpose: a transient child is then not restarted.

    :raises: by whoever wants to end.
    """


class RestartLimitReached(Shutdown):
    """There were more restarts than allowed; all children were stopped.

    :raises: by leaving a supervisor's `async with`; a parent supervisor sees it as a shutdown.
    """
