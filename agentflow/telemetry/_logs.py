import logging
import re
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import Processor

_SECRET = re.compile(r"(^|[_-])(token|api_?key|secret|password|authorization|cookie)$", re.IGNORECASE)
_MASK = "***"


class Level(StrEnum):
    """From which importance on something is said."""

    DEBUG = "debug"
    """Everything."""
    INFO = "info"
    """What a person who runs the program wants to see."""
    WARNING = "warning"
    """What may need a hand."""
    ERROR = "error"
    """What failed."""


def get_logger(name: str) -> BoundLogger:
    """A logger whose events carry fields: `log.info("session started", backend="bash")`.

    It speaks through the standard library's logger of that name, so an application's own logging goes on to work.
    """
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, *_SHARED, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("BoundLogger", logger)


def configure_logging(
    level: Level | str = Level.INFO, *, json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Make every log of this process one line each: coloured words on a terminal, else JSON.

    Only a program calls this, never a library.

    :param json: JSON or words whatever the stream is.
    :param stream: where to; stderr if none is given, because stdout may carry a protocol.
    """
    output: TextIO = stream or sys.stderr
    lines = not output.isatty() if json is None else json
    renderer = structlog.processors.JSONRenderer() if lines else structlog.dev.ConsoleRenderer()
    last: list[Processor] = [structlog.processors.format_exc_info, renderer] if lines else [renderer]
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
    """Hide the value of every field whose name says that it is a secret."""
    for field in event:
        if _SECRET.search(field):
            event[field] = _MASK
    return event


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _mask_secrets,
]
