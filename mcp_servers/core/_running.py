"""Running something in a session's instance: limits, progress, long output, and what an outcome means."""

import codecs
from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.core._call import CallContext, Output
from mcp_servers.core._session import Session
from runtimes import Outcome, OutputSink

__all__ = [
    "RunSettings",
    "check_outcome",
    "check_settings",
    "progress_of",
    "read_settings",
    "sendable",
    "shown",
]

M = TypeVar("M", bound=BaseModel)

LONGEST_MESSAGE = 4_000

_FAILURES = {
    Outcome.TIMEOUT: (ErrorKind.TIMEOUT, "the time was up; what ran was killed"),
    Outcome.CPU_LIMIT: (ErrorKind.CPU_LIMIT, "the CPU time was up; what ran was killed"),
    Outcome.OUT_OF_MEMORY: (ErrorKind.OUT_OF_MEMORY, "the memory limit was hit"),
    Outcome.TOO_MANY_PROCESSES: (ErrorKind.TOO_MANY_PROCESSES, "the limit on processes was hit"),
    Outcome.FILE_TOO_LARGE: (ErrorKind.FILE_TOO_LARGE, "a file grew too large, or the workspace is full"),
    Outcome.OUTPUT_LIMIT: (ErrorKind.OUTPUT_LIMIT, "there was too much output; what ran was killed"),
}


class RunSettings(Section):
    """Settings of the backends that run something."""

    output_characters: int = Field(default=30_000, ge=100)
    """How much of each output a result shows; what is longer is cut in the middle and kept whole as a resource."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds that a call may take unless it says otherwise; without it the instance's own limit counts."""


def read_settings(model: type[M], backend: str, settings: Mapping[str, object]) -> M:
    """A backend's settings, validated.

    :raises ToolFailure: `bad_arguments`, saying which setting is wrong and why.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        message = f"settings of {backend}: {'; '.join(wrong)}. Known: {', '.join(model.model_fields)}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None


def check_settings(model: type[BaseModel], backend: str, settings: Mapping[str, object]) -> None:
    """Refuse a server's settings of a backend.

    :raises ConfigurationError: if they can't be used.
    """
    try:
        read_settings(model, backend, settings)
    except ToolFailure as failure:
        raise ConfigurationError(failure.message) from None


def sendable(tool: str, text: str, *, without: str = "") -> str:
    """The text, if it can be given to a program.

    :raises ToolFailure: `bad_arguments`, if it is no valid text, or holds a character of `without`.
    """
    wrong = next((character for character in without if character in text), None)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = text[error.start]
    if wrong is not None:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: the character {wrong!r} can't be used here.")
    return text


def progress_of(context: CallContext) -> OutputSink | None:
    """Reports output as it comes as progress: bytes so far, and the new text as the message."""
    if not context.wants_progress:
        return None
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    done = 0

    def report(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        nonlocal done
        done += len(data)
        context.progress(done, None, decoders[stream].decode(data)[-LONGEST_MESSAGE:])

    return report


def shown(text: str, name: str, limit: int, session: Session, context: CallContext) -> str:
    """The text, or its beginning and end where it is longer than the limit; then the whole is kept."""
    if len(text) <= limit:
        return text
    link = session.keep(name, "text/plain", text.encode("utf-8", "replace"))
    context.show(link)
    half = limit // 2
    left_out = f"{len(text) - 2 * half} of {len(text)} characters left out; the whole is at {link.uri}"
    return f"{text[:half]}\n… {left_out} …\n{text[-half:]}"


def check_outcome(tool: str, outcome: Outcome, detail: str, note: str, data: Output) -> None:
    """Pass what ran to its end; of what was stopped, raise the failure with what there was of it.

    :raises ToolFailure: for an outcome that is a limit of the sandbox.
    """
    if outcome in _FAILURES:
        kind, meaning = _FAILURES[outcome]
        cause = f" ({detail.removesuffix('.')})" if detail else ""
        message = f"{tool}: {meaning}{cause}. {note}".strip()
        raise ToolFailure(kind, message, data.model_dump(mode="json"))
