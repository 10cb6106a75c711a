import logging
import re
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import Processor

_SECRET = re.compile(r"(^|[_-])(token|api_?key|secret|password|authorization|cookie)$", re.IGNORECASE)
_MASK = "***"


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
    """Mask the value of every field with the name of a secret."""
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
