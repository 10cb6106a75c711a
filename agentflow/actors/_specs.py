"""What a supervisor is told about its children."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from agentflow.actors._child import Child
from agentflow.errors import ConfigurationError


class Strategy(StrEnum):
    """Which children are restarted when one of them ends."""

    ONE_FOR_ONE = "one_for_one"
    """That one."""
    ONE_FOR_ALL = "one_for_all"
    """All of them: those that still run are stopped first."""
    REST_FOR_ONE = "rest_for_one"
    """That one and those that were started after it."""


class Restart(StrEnum):
    """When a child that ended by itself is started again."""

    PERMANENT = "permanent"
    """Always."""
    TRANSIENT = "transient"
    """When it crashed or was killed."""
    TEMPORARY = "temporary"
    """Never, not even when a sibling's end stopped it; the supervisor forgets it."""


class AutoShutdown(StrEnum):
    """When a supervisor ends because significant children ended by themselves (and are not restarted)."""

    NEVER = "never"
    """Never."""
    ANY_SIGNIFICANT = "any_significant"
    """With the first of them."""
    ALL_SIGNIFICANT = "all_significant"
    """With the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A pause before a restart, longer after each failure in a row."""

    initial: float = 0.1
    """Seconds before the first restart."""
    factor: float = 2.0
    """How much longer each next pause is."""
    maximum: float = 30.0
    """The longest pause."""

    def delay(self, failures: int) -> float:
        """The pause after so many failures in a row (1 or more)."""
        # The exponent is bounded, because a float overflows long before a patient supervisor gives up.
        return min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """How to start, restart and stop one child."""

    id: str
    """Its name, unique in its supervisor."""
    start: Callable[..., Child]
    """Makes the child, anew for each start: often simply a class."""
    restart: Restart = Restart.PERMANENT
    """When it is started again."""
    significant: bool = False
    """Whether its end counts for the supervisor's `auto_shutdown`."""
    shutdown: float | None = None
    """Seconds that it has to end when asked; 0: it is not asked but cancelled; by default 5, and no limit for a
    supervisor, which must be given the time to stop its own children."""
    start_timeout: float = 30.0
    """Seconds that it has to become ready."""
    kind: Literal["worker", "supervisor"] = "worker"
    """What it is."""

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
        """Seconds that it has to end when asked."""
        if self.shutdown is not None:
            return self.shutdown
        return math.inf if self.kind == "supervisor" else 5.0


def check_specs(specs: Iterable[ChildSpec], auto_shutdown: AutoShutdown) -> None:
    """Refuse specs that can't be used together."""
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen:
            raise ConfigurationError(f"ChildSpec {spec.id!r}: two children have this id; rename one of them")
        seen.add(spec.id)
        if spec.significant and auto_shutdown is AutoShutdown.NEVER:
            raise ConfigurationError(
                f"ChildSpec {spec.id!r}: significant means nothing with auto_shutdown=never; "
                "set the supervisor's auto_shutdown"
            )
