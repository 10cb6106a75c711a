"""Structured logs on stderr, with secrets masked. See docs/settings.md."""

import logging
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import Processor

from agentflow._secrets import MASK, is_secret_name, mask_settings, mask_text
from agentflow._terminal import printable
from agentflow._typeguards import is_list_or_tuple, is_mapping


class Level(StrEnum):
    """Minimum level of events to log. See docs/settings.md."""

    DEBUG = "debug"
    """All events."""
    INFO = "info"
    """Progress of the program."""
    WARNING = "warning"
    """Problems that may need attention."""
    ERROR = "error"
    """Failures."""


def get_logger(name: str) -> BoundLogger:
    """Return a logger whose events have fields: `log.info("session started", backend="bash")`.

    It writes to the standard library's logger of that name, so it works with an application's own logging.

    See docs/settings.md.
    """
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, *_SHARED, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger


def configure_logging(
    level: Level | str = Level.INFO, *, json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Write every log event of this process as one line: coloured text on a terminal, JSON otherwise.

    Only a program calls this, never a library. See docs/settings.md.

    :param json: force JSON or text.
    :param stream: output stream; stderr by default, because stdout may carry a protocol.
    """
    output: TextIO = stream or sys.stderr
    lines = not output.isatty() if json is None else json
    # A traceback is plain text, without the values of variables: they may be secrets.
    last: list[Processor] = [structlog.processors.format_exc_info, _mask_secrets]
    last += (
        [structlog.processors.JSONRenderer()] if lines else [_strip_controls, structlog.dev.ConsoleRenderer()]
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *_SHARED],
            processors=[ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(Level(level).name)


def _mask_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask the value of every field with the name of a secret, and secrets in the other texts."""
    for field, value in event.items():
        if isinstance(value, int | float | None):
            continue
        if field != "key" and is_secret_name(field):
            event[field] = MASK
        else:
            event[field] = mask_text(value) if isinstance(value, str) else _masked(value)
    return event


def _masked(value: object) -> object:
    """Return a value of another type as it is logged, masked: JSON values with their structure, others as text."""
    return mask_settings(value) if is_mapping(value) or is_list_or_tuple(value) else mask_text(repr(value))


def _strip_controls(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Remove control characters, which a terminal would obey."""
    for field, value in event.items():
        if isinstance(value, str):
            event[field] = printable(value)
    return event


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
