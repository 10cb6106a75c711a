"""What models inside of tools consume, told to whoever called the tool in this process."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from agentflow.trajectory import Usage

__all__ = ["Meter", "count", "metered"]


class Meter:
    """What was consumed while it ran."""

    def __init__(self) -> None:
        self.usage = Usage()
        """So far."""


_METER: ContextVar[Meter | None] = ContextVar("agentflow_meter", default=None)


@contextmanager
def metered() -> Generator[Meter]:
    """Measure what is consumed inside, in tasks that begin there, too."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def count(usage: Usage) -> None:
    """A model inside of a tool consumed that."""
    if (meter := _METER.get()) is not None:
        meter.usage += usage
