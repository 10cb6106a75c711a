"""Every error that AgentFlow raises on purpose.

::

    AgentFlowError
    ├── ConfigurationError          settings that can't be used: what, where, how to mend it
    ├── IsolationUnavailable        the isolation asked for can't be had on this machine
    ├── RuntimeFailure              a runtime could not do what it was asked
    │   ├── InstanceGone            the instance has ended
    │   ├── CannotFork              a live instance can't be copied as it is now
    │   └── NotOffered              this machine was not built for that
    ├── ActorError                  between actors, or a supervisor and its children (see `agentflow.actors._errors`)
    ├── ToolFailure                 a tool call that failed, with its closed ``kind``
    ├── ModelFailure                a model call that failed, with its closed ``kind``
    ├── CheckpointError             a checkpoint that can't be written, or isn't whole (see `agentflow.learner`)
    ├── LossFailure                 a loss that can't be computed or is no finite number; it names the rows
    └── RunStopped                  a run that ended early and can be resumed, with its closed ``cause``

A failed tool call, model call or rollout is data with a typed reason on its node; these exceptions carry that
reason to the edge where it becomes data.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.trajectory import Tokens

__all__ = [
    "AgentFlowError",
    "CannotFork",
    "ConfigurationError",
    "ErrorKind",
    "InstanceGone",
    "IsolationUnavailable",
    "LossFailure",
    "ModelFailure",
    "ModelFailureKind",
    "NotOffered",
    "RunStopped",
    "RuntimeFailure",
    "StopCause",
    "ToolFailure",
]


class ErrorKind(StrEnum):
    """Why a tool call failed. The set is closed: clients may switch on it."""

    TOOL_NOT_FOUND = "tool_not_found"
    """No such tool or backend; the message names the nearest right one."""
    BAD_ARGUMENTS = "bad_arguments"
    """An argument is missing, unknown, of the wrong type or out of range."""
    SESSION_NOT_FOUND = "session_not_found"
    """The handle is unknown, has ended, or belongs to another client."""
    NOT_FOUND = "not_found"
    """The thing that the call names (a file, a job, a table) does not exist."""
    DENIED = "denied"
    """What was asked for is not allowed."""
    TIMEOUT = "timeout"
    """The call's time was up; what ran was killed; `data` holds what there was."""
    CPU_LIMIT = "cpu_limit"
    """The call's CPU time was up; what ran was killed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit was hit."""
    TOO_MANY_PROCESSES = "too_many_processes"
    """The process limit was hit."""
    FILE_TOO_LARGE = "file_too_large"
    """A file grew past the file-size limit, or the workspace is full."""
    OUTPUT_LIMIT = "output_limit"
    """More output than allowed; what ran was killed."""
    CANCELLED = "cancelled"
    """The caller gave up; what ran was killed."""
    CANNOT_FORK = "cannot_fork"
    """The live state can't be copied as it is now."""
    BUSY = "busy"
    """A limit on sessions or calls in flight is reached; try again later."""
    UNAVAILABLE = "unavailable"
    """The server or a component that it needs can't be reached or isn't there."""
    FAILED = "failed"
    """Anything else; the message says what."""


class AgentFlowError(Exception):
    """The root of all errors of this project."""


class ConfigurationError(AgentFlowError, ValueError):
    """Settings that can't be used. The message is one line: what, where, how to mend it.

    :raises: by everything that reads settings, before anything is started.
    """


class IsolationUnavailable(AgentFlowError):
    """The isolation asked for can't be had here. One line: what is missing and how to get it.

    :raises: by starting a runtime; it never runs with less instead.
    """


class RuntimeFailure(AgentFlowError):
    """A runtime could not do what it was asked."""


class InstanceGone(RuntimeFailure):
    """The instance was stopped or has died.

    :raises: by every method of an instance after its end.
    """


class CannotFork(RuntimeFailure):
    """A live instance can't be copied as it is now; the message says what is in the way.

    :raises: by ``Instance.fork``; the instance itself goes on.
    """


class NotOffered(RuntimeFailure):
    """A machine was not built for what was asked of it; the message says why in one line, and which is."""


class ToolFailure(AgentFlowError):
    """A tool call that failed.

    :raises: by a tool's own code; the tool table turns it into a failed result.
    """

    def __init__(self, kind: ErrorKind, message: str, data: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data or {}
        """What there was of output when the call failed."""


class ModelFailureKind(StrEnum):
    """Why a model call failed. The set is closed."""

    RATE_LIMITED = "rate_limited"
    """The endpoint still asked for less after every attempt."""
    UNAVAILABLE = "unavailable"
    """No usable answer after every attempt: connection, server error."""
    TIMEOUT = "timeout"
    """The call's time was up."""
    GARBAGE = "garbage"
    """It answered, but not what the schema asks for."""
    BAD_REQUEST = "bad_request"
    """The endpoint refused the request as it is."""
    TOO_LONG = "too_long"
    """The prompt does not fit, or the answer was cut at its token limit."""
    DENIED = "denied"
    """The key is missing or not accepted, or there is no such model."""
    REFUSED = "refused"
    """The model would not answer."""


class ModelFailure(AgentFlowError):
    """A model call that failed for good.

    :raises: by `Model.complete`, after all attempts.
    """

    def __init__(
        self,
        kind: ModelFailureKind,
        message: str,
        *,
        attempts: int = 1,
        answers: int = 0,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        drawn: "tuple[Tokens, ...]" = (),
        said: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.attempts = attempts
        """HTTP requests made for it."""
        self.answers = answers
        """Those that were answered, and paid, but not usable."""
        self.prompt_tokens = prompt_tokens
        """Tokens read for them."""
        self.completion_tokens = completion_tokens
        """Tokens written for them."""
        self.drawn = drawn
        """Those tokens, answer by answer, where the engine was asked for them: of answers that were cut, too."""
        self.said = said
        """The last of these answers, as far as it goes."""


class LossFailure(AgentFlowError):
    """A loss that can't be computed, or is no finite number. No weight has changed.

    :raises: by making rows of episodes, and by the loss of rows.
    """

    def __init__(self, message: str, *, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows
        """The positions of the rows that it comes from."""


class StopCause(StrEnum):
    """Why a run ended before its work did. The set is closed."""

    BUDGET = "budget"
    """A budget of tokens, money or time is used up."""
    MODEL = "model"
    """The model can't be used: its endpoint is down, its key is refused."""
    SANDBOX = "sandbox"
    """No sandbox can be had any more."""
    JOURNAL = "journal"
    """The journal can't be written: the disk is full, the database is gone."""
    LEARNER = "learner"
    """The weights can't be moved any more: step after step the loss or its gradient is no finite number."""
    INTERRUPTED = "interrupted"
    """Somebody asked it to stop."""


class RunStopped(AgentFlowError):
    """A run ended cleanly before its work did. Everything that was finished is kept; the same command goes on.

    :raises: by whatever finds that the run can't go on; nothing of what it was doing is journalled.
    """

    def __init__(self, cause: StopCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        """One line: what happened and how to go on."""
