"""Specs of children, with a supervisor's strategies."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from agentflow.actors._child import Child
from agentflow.errors import ConfigurationError


class Strategy(StrEnum):
    """Children that are restarted when one of them ends. See docs/actors.md."""

    ONE_FOR_ONE = "one_for_one"
    """That child alone."""
    ONE_FOR_ALL = "one_for_all"
    """All children; those that run are stopped first."""
    REST_FOR_ONE = "rest_for_one"
    """That child and those started after it."""


class Restart(StrEnum):
    """Ends after which a child is restarted. See docs/actors.md."""

    PERMANENT = "permanent"
    """All."""
    TRANSIENT = "transient"
    """Crashes and kills."""
    TEMPORARY = "temporary"
    """None, not even a stop by a sibling's restart; the supervisor forgets the child."""


class AutoShutdown(StrEnum):
    """Ends of significant children that end their supervisor, if they are not restarted. See docs/actors.md."""

    NEVER = "never"
    """None."""
    ANY_SIGNIFICANT = "any_significant"
    """The first one."""
    ALL_SIGNIFICANT = "all_significant"
    """The last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential pause before restarts. See docs/actors.md."""

    initial: float = 0.1
    """Seconds before the first restart."""
    factor: float = 2.0
    """Factor between successive pauses."""
    maximum: float = 30.0
    """Maximum pause."""

    def delay(self, failures: int) -> float:
        """Return the pause after some failures in a row (1 or more)."""
        # The exponent is bounded, because a float overflows long before a patient supervisor gives up.
        return min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Start, restart and stop of one child. See docs/actors.md."""

    id: str
    """Name, unique within its supervisor."""
    start: Callable[..., Child]
    """Factory, called for each start; often simply a class."""
    restart: Restart = Restart.PERMANENT
    """Ends after which it is restarted."""
    significant: bool = False
    """Its end counts for the supervisor's `auto_shutdown`."""
    shutdown: float | None = None
    """Seconds to end when asked; 0 cancels it without asking. The default is 5, and no limit for a supervisor, which
    needs the time to stop its own children."""
    start_timeout: float = 30.0
    """Seconds to become ready."""
    kind: Literal["worker", "supervisor"] = "worker"
    """Kind."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigurationError("ChildSpec: the id is empty; give the child a name")
        if self.significant and self.restart is Restart.PERMANENT:
            raise ConfigurationError(
                f"ChildSpec {self.id!r}: a permanent child never ends for good, so it can't be significant; "
                "make it transient or temporary"
            )
        if self.kind == "supervisor" and self.shutdown not in (None, math.inf):
            raise ConfigurationError(
                f"ChildSpec {self.id!r}: a supervisor can't be given a limit to stop its children; "
                "leave shutdown out"
            )
        if (self.shutdown is not None and self.shutdown < 0) or self.start_timeout <= 0:
            raise ConfigurationError(f"ChildSpec {self.id!r}: shutdown and start_timeout can't be negative")

    @property
    def grace(self) -> float:
        """Seconds to end when asked."""
        if self.shutdown is not None:
            return self.shutdown
        return math.inf if self.kind == "supervisor" else 5.0


def check_specs(specs: Iterable[ChildSpec], auto_shutdown: AutoShutdown) -> None:
    """Refuse specs that contradict each other."""
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen:
            raise ConfigurationError(f"ChildSpec {spec.id!r}: two children have this id; rename one of them")
        seen.add(spec.id)
        if spec.significant and auto_shutdown is AutoShutdown.NEVER:
            raise ConfigurationError(
                f"ChildSpec {spec.id!r}: significant has no effect with auto_shutdown=never; "
                "set the supervisor's auto_shutdown"
            )
