"""Log of what a server refuses: one line per kind and minute, however often it happens."""

import logging
import time
from collections.abc import Callable

from agentflow.telemetry import get_logger

MINUTE = 60.0
_MAX_KINDS = 256
_log = get_logger(__name__)


class _Repetitions:
    """Lets each kind of line pass once a minute, and counts the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def seen(self, kind: str) -> int | None:
        """Return how often the kind was held back since its last line; `None` to hold this one back, too."""
        since, held = self._kinds.get(kind, (-MINUTE, 0))
        now = self._clock()
        if now - since < MINUTE:
            self._kinds[kind] = (since, held + 1)
            return None
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        return held


class RefusalLog:
    """Log of a server's refusals."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        """:param server: name of the server in each line."""
        self._server = server
        self._repetitions = _Repetitions(clock)

    def refused(self, reason: str) -> None:
        """Log a refusal for this reason, unless there was one in the last minute."""
        if (before := self._repetitions.seen(reason)) is not None:
            _log.warning("requests are refused", server=self._server, reason=reason, more_before=before)


class OncePerMinute(logging.Filter):
    """Filter of a library's logger: each kind of line once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._repetitions = _Repetitions(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        return self._repetitions.seen(str(record.msg)) is not None
