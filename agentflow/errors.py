"""All exceptions that AgentFlow raises deliberately.

::

    AgentFlowError
    ├── ConfigurationError          invalid settings: source, problem, remedy
    ├── IsolationUnavailable        this machine can't provide the requested isolation
    ├── RuntimeFailure              a runtime failed
    │   ├── InstanceGone            the instance has ended
    │   ├── CannotFork              a live instance can't be copied in its current state
    │   └── NotOffered              the machine was built without the requested feature
    ├── ActorError                  errors of actors and supervisors (see `agentflow.actors._errors`)
    ├── ToolFailure                 a failed tool call, with its closed ``kind``
    ├── ModelFailure                a failed model call, with its closed ``kind``
    ├── CheckpointError             a checkpoint that can't be written, or is incomplete (see `agentflow.learner`)
    ├── LossFailure                 a loss that can't be computed or is not finite; it names the rows
    └── RunStopped                  a run that ended early and can be resumed, with its closed ``cause``
        └── WorkPostponed           one seed, task or episode that can't be finished now; the others continue

A failed tool call, model call or rollout is data with a typed reason on its node; these exceptions carry that reason
to the code that records it.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from agentflow._secrets import mask_text
from agentflow._terminal import printable
from agentflow.extras import extra_of, missing_extra

if TYPE_CHECKING:
    from agentflow.trace import Tokens

__all__ = [
    "AgentFlowError",
    "CannotFork",
    "ConfigurationError",
    "ErrorKind",
    "ExitReport",
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
    "WorkPostponed",
    "error_line",
    "exit_report",
    "unwrap_group",
]


class ErrorKind(StrEnum):
    """Reason of a failed tool call. The set is closed: clients may switch on it."""

    TOOL_NOT_FOUND = "tool_not_found"
    """No such tool or backend; the message names the nearest one."""
    BAD_ARGUMENTS = "bad_arguments"
    """An argument is missing, unknown, of the wrong type or out of range."""
    SESSION_NOT_FOUND = "session_not_found"
    """The handle is unknown, has ended, or belongs to another client."""
    NOT_FOUND = "not_found"
    """An object that the call names (a file, a job, a table) does not exist."""
    DENIED = "denied"
    """The operation is not allowed."""
    TIMEOUT = "timeout"
    """The call timed out and its process was killed; `data` holds the output so far."""
    CPU_LIMIT = "cpu_limit"
    """The CPU time limit was reached and the process was killed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit was reached."""
    TOO_MANY_PROCESSES = "too_many_processes"
    """The process limit was reached."""
    FILE_TOO_LARGE = "file_too_large"
    """A file exceeded the size limit, or the workspace is full."""
    OUTPUT_LIMIT = "output_limit"
    """The output limit was exceeded and the process was killed."""
    CANCELLED = "cancelled"
    """The caller cancelled the call and its process was killed."""
    CANNOT_FORK = "cannot_fork"
    """The live state can't be copied in its current state."""
    BUSY = "busy"
    """A limit on sessions or concurrent calls is reached; try again later."""
    UNAVAILABLE = "unavailable"
    """The server, or a component that it needs, can't be reached or is missing."""
    FAILED = "failed"
    """Any other reason; see the message."""


class AgentFlowError(Exception):
    """Base class of all errors of this project."""


class ConfigurationError(AgentFlowError, ValueError):
    """Invalid settings. The message is one line: source, problem, remedy.

    :raises: by everything that reads settings, before anything is started.
    """


class IsolationUnavailable(AgentFlowError):
    """The requested isolation is not available. The message is one line: what is missing, and how to get it.

    :raises: when a runtime starts; it never falls back to weaker isolation.
    """


class RuntimeFailure(AgentFlowError):
    """A runtime failed."""


class InstanceGone(RuntimeFailure):
    """The instance was stopped or has died.

    :raises: by every method of an ended instance.
    """


class CannotFork(RuntimeFailure):
    """A live instance can't be copied in its current state; the message gives the reason.

    :raises: by ``Instance.fork``; the instance itself continues.
    """


class NotOffered(RuntimeFailure):
    """The machine was built without the requested feature; the message names a machine that supports it."""


class ToolFailure(AgentFlowError):
    """A failed tool call.

    :raises: by the code of a tool; the tool table turns it into a failed result.
    """

    def __init__(self, kind: ErrorKind, message: str, data: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data or {}
        """Output up to the failure."""


class ModelFailureKind(StrEnum):
    """Reason of a failed model call. The set is closed."""

    RATE_LIMITED = "rate_limited"
    """The endpoint was still rate limiting after every attempt."""
    UNAVAILABLE = "unavailable"
    """No usable answer after every attempt: connection or server error."""
    TIMEOUT = "timeout"
    """The call timed out."""
    GARBAGE = "garbage"
    """The answer does not match the schema."""
    BAD_REQUEST = "bad_request"
    """The endpoint refused the request."""
    TOO_LONG = "too_long"
    """The prompt is too long, or the answer was cut at its token limit."""
    DENIED = "denied"
    """The key is missing or refused, or there is no such model."""
    REFUSED = "refused"
    """The model refused to answer."""

    @property
    def is_temporary(self) -> bool:
        """The same call may succeed later: the endpoint failed, not the model."""
        return self in _TEMPORARY


_TEMPORARY = frozenset(
    {ModelFailureKind.RATE_LIMITED, ModelFailureKind.UNAVAILABLE, ModelFailureKind.TIMEOUT}
)


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
        estimates: int = 0,
        answer_tokens: "tuple[Tokens, ...]" = (),
        answer_text: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.attempts = attempts
        """HTTP requests made."""
        self.answers = answers
        """Number of answers that were received, and paid for, but not usable."""
        self.prompt_tokens = prompt_tokens
        """Prompt tokens of these answers."""
        self.completion_tokens = completion_tokens
        """Completion tokens of these answers."""
        self.estimates = estimates
        """Number of these answers whose tokens are an estimate."""
        self.answer_tokens = answer_tokens
        """Tokens of these answers, one entry each, if the engine returned them; includes answers that were cut."""
        self.answer_text = answer_text
        """Text of the last of these answers, as far as it was received."""
        self.prompt = ""
        """Hash under which the run stores the prompt; empty: it does not."""


class LossFailure(AgentFlowError):
    """A loss that can't be computed, or is not finite. No weight has changed.

    :raises: by the conversion of episodes to rows, and by the loss.
    """

    def __init__(self, message: str, *, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows
        """Positions of the rows that cause it."""


class StopCause(StrEnum):
    """Reason of an early end of a run. The set is closed."""

    BUDGET = "budget"
    """A budget of tokens, money or time is used up."""
    MODEL = "model"
    """The model can't be used: its endpoint is down, or refuses the key."""
    SANDBOX = "sandbox"
    """No sandbox can be started any more."""
    JOURNAL = "journal"
    """The journal can't be written: the disk is full, or the database is gone."""
    SCORING = "scoring"
    """The metric, reward or judge fails on every answer."""
    LEARNER = "learner"
    """The weights can't be updated any more: the loss or its gradient is not finite, step after step."""
    INTERRUPTED = "interrupted"
    """The user stopped the run."""


class RunStopped(AgentFlowError):
    """A run ended cleanly before its work was done. Finished work is kept; run the same command to resume.

    :raises: by code that finds that the run can't continue; unfinished work is not journalled.
    """

    def __init__(self, cause: StopCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        """One line: the reason, and how to resume."""


class WorkPostponed(RunStopped):
    """One seed, task or episode can't be finished now, as its model is unavailable. The others continue.

    :raises: by the models of a run; the unfinished work is not journalled, and the same command repeats it.
    """

    def __init__(self, cause: StopCause, message: str, *, kind: ModelFailureKind | None = None) -> None:
        super().__init__(cause, message)
        self.kind = kind
        """Reason of the failed model call; `None` if no call failed."""


def unwrap_group(error: Exception) -> Exception:
    """Return one error out of nested exception groups, in which task groups wrap errors.

    It is the first that AgentFlow raised deliberately, otherwise the first.

    >>> unwrap_group(ExceptionGroup("tasks", [ValueError("no such seed")]))
    ValueError('no such seed')
    """
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if isinstance(leaf, AgentFlowError)), leaves[0])


def error_line(error: Exception) -> str:
    """Return the type and message of an error, taken out of its groups, as one line of at most 500 characters.

    >>> error_line(ValueError("no such\\nseed"))
    'ValueError: no such seed'
    """
    error = unwrap_group(error)
    return f"{type(error).__name__}: {_one_line(error)}"[:500]


def _one_line(error: Exception) -> str:
    """Return the message of an error as one line, without secrets and control characters."""
    return printable(mask_text(" ".join(str(error).split())))


class ExitReport(NamedTuple):
    """End of a program by an error."""

    message: str
    """One line; empty if there is nothing to say."""
    status: int
    """Exit status: 1 failed, 2 invalid settings, 3 stopped early, 130 interrupted."""


def exit_report(error: BaseException, *, what: str = "this", extra: str = "") -> ExitReport:
    """Return the message and the exit status of a program that an error ended.

    Programs call it at their entry point, so that no error of any task group reaches the user as a traceback. With
    `AGENTFLOW_TRACEBACK=1` in the environment an error that nobody expected is printed with its traceback.

    >>> exit_report(ExceptionGroup("tasks", [ConfigurationError("seeds_file: no such file")]))
    ExitReport(message='seeds_file: no such file', status=2)

    :param what: name of the program, for a message about a missing extra.
    :param extra: the extra that it needs, if several contain a missing module.
    """
    if not isinstance(error, Exception):
        return ExitReport("", _INTERRUPTED)
    error = unwrap_group(error)
    line = _one_line(error)
    match error:
        case ConfigurationError():
            return ExitReport(line, 2)
        case RunStopped():
            return ExitReport(line, 3)
        case AgentFlowError():
            return ExitReport(line, 1)
        case BrokenPipeError():
            return ExitReport("", _INTERRUPTED)
        case ModuleNotFoundError() if owner := extra_of(error.name or "", prefer=extra):
            return ExitReport(missing_extra(what, owner), 2)
        case OSError() if error.filename is not None:
            return ExitReport(f"{os.fsdecode(error.filename)}: {error.strerror}", 1)
        case UnicodeEncodeError():
            return ExitReport(f"{error.object!r} is not UTF-8 text; rename it", 2)
        case _:
            if os.environ.get("AGENTFLOW_TRACEBACK"):
                sys.stderr.write(mask_text("".join(traceback.format_exception(error))))
            return ExitReport(
                f"unexpected {error_line(error)} (AGENTFLOW_TRACEBACK=1 shows the traceback)", 1
            )


_INTERRUPTED = 130


def _leaves(error: Exception) -> Iterator[Exception]:
    if _is_group(error):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_group(error: Exception) -> TypeGuard[ExceptionGroup[Exception]]:
    return isinstance(error, ExceptionGroup)
