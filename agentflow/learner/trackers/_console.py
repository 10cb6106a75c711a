"""A line for each step, for whoever watches."""

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from agentflow.telemetry import get_logger

__all__ = ["Console"]

logger = get_logger("agentflow.train")


class Console:
    """Says the figures that matter in one line of the log."""

    def __init__(self, shown: Sequence[str]) -> None:
        """:param shown: the names of figures, in order; `*` stands for anything."""
        self._shown = shown

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Say them."""
        names = [name for pattern in self._shown for name in sorted(figures) if fnmatchcase(name, pattern)]
        fields = {name: float(f"{figures[name]:.4g}") for name in dict.fromkeys(names)}
        logger.log(logging.INFO, "step", step=step, **fields)

    def close(self) -> None:
        """Nothing is left."""
