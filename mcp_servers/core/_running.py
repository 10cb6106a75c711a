"""Helpers for backends that run programs in a session's instance: settings, progress, long output, failures."""

import codecs
from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.settings import Section, explain_line
from mcp_servers.core._call import CallContext, Output
from mcp_servers.core._sessions import Session
from runtimes import Outcome, OutputSink

M = TypeVar("M", bound=BaseModel)

MAX_MESSAGE = 4_000

_FAILURES = {
    Outcome.TIMEOUT: (ErrorKind.TIMEOUT, "timed out; the program was killed"),
    Outcome.CPU_LIMIT: (ErrorKind.CPU_LIMIT, "the CPU time limit was reached; the program was killed"),
    Outcome.OUT_OF_MEMORY: (ErrorKind.OUT_OF_MEMORY, "the memory limit was reached"),
    Outcome.TOO_MANY_PROCESSES: (ErrorKind.TOO_MANY_PROCESSES, "the process limit was reached"),
    Outcome.FILE_TOO_LARGE: (ErrorKind.FILE_TOO_LARGE, "a file grew too large, or the workspace is full"),
    Outcome.OUTPUT_LIMIT: (ErrorKind.OUTPUT_LIMIT, "the output limit was reached; the program was killed"),
}


class RunSettings(Section):
    """Settings of backends that run programs."""

    output_characters: int = Field(default=30_000, ge=100)
    """Maximum characters of each output in a result; longer output is truncated in the middle and kept whole as a resource."""
    timeout: float | None = Field(default=None, gt=0)
    """Default time limit of a call in seconds; without it the instance's own limit applies."""


def read_settings(model: type[M], backend: str, settings: Mapping[str, object]) -> M:
    """Validate a backend's settings.

    :raises ToolFailure: `bad_arguments`, naming the setting and the problem.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        message = f"settings of {backend}: {explain_line(error, model)}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None


def check_settings(model: type[M], backend: str, settings: Mapping[str, object]) -> M:
    """Validate the server's settings for a backend.

    :raises ConfigurationError: if they are invalid.
    """
    try:
        return read_settings(model, backend, settings)
    except ToolFailure as failure:
        raise ConfigurationError(failure.message) from None


def sendable(tool: str, text: str, *, without: str = "") -> str:
    """Return the text if it can be passed to a program.

    :raises ToolFailure: `bad_arguments` if it is not valid UTF-8 or contains a character of `without`.
    """
    refused = next((character for character in without if character in text), None)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        refused = text[error.start]
    if refused is not None:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: the character {refused!r} cannot be used here.")
    return text


def progress_of(context: CallContext) -> OutputSink | None:
    """Return a sink that reports output as progress: bytes so far, and the new text as the message."""
    if not context.wants_progress:
        return None
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    done = 0

    def report(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        nonlocal done
        done += len(data)
        context.progress(done, None, decoders[stream].decode(data)[-MAX_MESSAGE:])

    return report


def shown(text: str, name: str, limit: int, session: Session | None, context: CallContext) -> str:
    """Return the text, truncated in the middle if it exceeds the limit; a session then keeps the full text as a resource."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"{len(text) - 2 * half} of {len(text)} characters left out"
    if session is not None:
        link = session.keep(name, "text/plain", text.encode("utf-8", "replace"))
        context.show(link)
        left_out += f"; the whole is at {link.uri}"
    return f"{text[:half]}\n… {left_out} …\n{text[-half:]}"


def check_outcome(tool: str, outcome: Outcome, detail: str, note: str, data: Output) -> None:
    """Raise the failure of a run that hit a limit of the sandbox, with its partial output; return for any other run.

    :raises ToolFailure: if a limit stopped the run.
    """
    if outcome in _FAILURES:
        kind, meaning = _FAILURES[outcome]
        cause = f" ({detail.removesuffix('.')})" if detail else ""
        message = f"{tool}: {meaning}{cause}. {note}".strip()
        raise ToolFailure(kind, message, data.model_dump(mode="json"))
