"""Progress of a run: its phase, its seeds, its rate, the consumption of its models, and its failures."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field

from agentflow.trace import Usage

if TYPE_CHECKING:
    from agentflow.models import Accounts, OpenModel


_LAST_CHANGES = 201


class ThroughputMeter:
    """Rate at which a counter rises, over its last changes. Time that is not measured, as in a pause, does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Measure nothing yet.

        :param clock: monotonic seconds.
        """
        self.finished = 0
        """Rise of the counter since it was first measured."""
        self._clock = clock
        self._began: float | None = None
        self._before = 0.0
        self._changes: deque[tuple[float, int]] = deque(maxlen=_LAST_CHANGES)

    def start(self, count: int) -> None:
        """Measure from now on. The count at the first call is that of earlier processes."""
        if self._began is None:
            self._began = self._clock()
        if not self._changes:
            self._changes.append((self._elapsed, count))

    def pause(self) -> None:
        """Measure nothing until the next start."""
        self._before, self._began = self._elapsed, None

    def record(self, count: int) -> None:
        """Note the counter."""
        if self._changes and count > (last := self._changes[-1][1]):
            self.finished += count - last
            self._changes.append((self._elapsed, count))

    @property
    def rate(self) -> float:
        """Rise per second; 0: none yet."""
        if len(self._changes) < 2:
            return 0.0
        since, before = self._changes[0]
        elapsed = self._elapsed - since
        return (self._changes[-1][1] - before) / elapsed if elapsed > 0 else 0.0

    def remaining(self, left: int, concurrent: int = 1) -> float | None:
        """Return the estimated seconds until this many more are finished; `None` if it is too early to tell.

        :param left: number of those that are not finished.
        :param concurrent: number of those in work. As many must have finished, or half of all: the first ones to finish
            say nothing about the rate of all that began with them.
        """
        needed = max(1, min(concurrent, (self.finished + left + 1) // 2))
        if self._began is None or self.finished < needed or self.rate <= 0:
            return None
        return left / self.rate

    @property
    def _elapsed(self) -> float:
        return self._before + (0.0 if self._began is None else self._clock() - self._began)


class Phase(StrEnum):
    """Phase of a run. The set is closed."""

    STARTING = "starting"
    """Resources are being opened."""
    LOADING = "loading"
    """A training loads its policy."""
    ENGINE = "engine"
    """A training starts its engine, or connects to it."""
    GROWING = "growing"
    """Trees and paths grow."""
    ROLLOUTS = "rollouts"
    """A training waits for the episodes of its next step."""
    STEP = "step"
    """A training computes a step."""
    PUBLICATION = "publication"
    """A training publishes new weights to its engine."""
    VALIDATION = "validation"
    """A training evaluates its policy on held-out tasks."""
    PAUSED = "paused"
    """Nothing new begins until the run is resumed."""
    STOPPING = "stopping"
    """Effects in flight complete."""
    WRITING = "writing"
    """The files are being written."""
    DONE = "done"
    """Everything is finished."""
    STOPPED = "stopped"
    """The run ended early; the same command resumes it."""


class RunStatus(Struct, frozen=True, kw_only=True):
    """Progress of a run at one moment."""

    phase: Phase
    """Current phase."""
    seeds: int
    """Number of seeds of the run; in a rollout, number of task samples."""
    done: int
    """Number of finished seeds."""
    active: int
    """Number of seeds that this process is working on."""
    calls_in_flight: int
    """Number of model requests without a response."""
    calls_failed: int
    """Number of model calls that failed for good."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Model usage by role, of the whole run."""
    cost: float = 0.0
    """Cost of that usage, by the configured prices."""
    seconds: float = 0.0
    """Seconds since this process began."""
    finished: int = 0
    """Number of seeds finished since this process began."""
    rate: float = 0.0
    """Seeds finished per second, over the last 200, without pauses; 0: none yet."""
    remaining: float | None = None
    """Estimated seconds to the end; `None`: unknown."""
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Failures that this process saw, by kind: `tool timeout`, `model rate_limited`, `seed crashed`."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of the whole run."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values())


_UNMEASURED = frozenset(
    {
        *(Phase.STARTING, Phase.LOADING, Phase.ENGINE, Phase.PAUSED),
        *(Phase.STOPPING, Phase.WRITING, Phase.DONE, Phase.STOPPED),
    }
)
"""Phases in which no unit is worked on."""


class MeasuredProgress:
    """Phase of a run with its duration, and the number of its finished units with their rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start the clock.

        :param clock: monotonic seconds.
        """
        self.failures: Counter[str] = Counter()
        """Failures that this process saw, by kind."""
        self.spent: dict[Phase, float] = {}
        """Seconds of each phase, in total."""
        self.durations: dict[Phase, float] = {}
        """Seconds that each phase took the last time it ended without an error."""
        self._meter = ThroughputMeter(clock)
        self._phase = Phase.STARTING
        self._phase_began = clock()
        self._phase_changed = anyio.Event()
        self._done = 0
        self._clock = clock
        self._began = clock()

    @property
    def phase(self) -> Phase:
        """Current phase. The rate is measured in those in which units are worked on."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        now = self._clock()
        seconds = now - self._phase_began
        self.spent[self._phase] = self.spent.get(self._phase, 0.0) + seconds
        if phase is not Phase.STOPPED:
            self.durations[self._phase] = seconds
        self._phase, self._phase_began = phase, now
        self._phase_changed.set()
        self._phase_changed = anyio.Event()
        if phase in _UNMEASURED:
            self._meter.pause()
        else:
            self._meter.start(self._done)

    async def wait_for_phase_after(self, phase: str) -> None:
        """Wait until the phase is another one."""
        while self._phase.value == phase:
            await self._phase_changed.wait()

    @property
    def done(self) -> int:
        """Number of finished units, as far as this process knows."""
        return self._done

    @done.setter
    def done(self, done: int) -> None:
        self._done = done
        self._meter.record(done)

    @property
    def phase_seconds(self) -> float:
        """Seconds since the current phase began."""
        return self._clock() - self._phase_began

    @property
    def seconds(self) -> float:
        """Seconds since this process began."""
        return self._clock() - self._began


class RunProgress(MeasuredProgress):
    """Counters of an active run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        :param clock: monotonic seconds.
        """
        super().__init__(clock)
        self.seeds = 0
        """Number of seeds of the run."""
        self.active = 0
        """Number of seeds that this process is working on."""
        self.models: Sequence[OpenModel] = ()
        """The engines, each once."""
        self.accounts: Accounts | None = None
        """Usage and budgets."""

    def status(self) -> RunStatus:
        """Return the current progress."""
        return RunStatus(**self._status_fields())

    def failure_counts(self) -> dict[str, int]:
        """Return all failures that this process saw, by kind, the most frequent first."""
        counts = self.failures.copy()
        for engine in (model.statistics() for model in self.models):
            counts.update({f"model {kind}": count for kind, count in engine.failures_by_kind.items()})
        return dict(counts.most_common())

    def _status_fields(self) -> dict[str, Any]:
        engines = [model.statistics() for model in self.models]
        accounts = self.accounts
        return {
            "phase": self.phase,
            "seeds": self.seeds,
            "done": self.done,
            "active": self.active,
            "calls_in_flight": sum(engine.in_flight for engine in engines),
            "calls_failed": sum(engine.failures for engine in engines),
            "usage": {} if accounts is None else dict(sorted(accounts.by_role.items())),
            "cost": 0.0 if accounts is None else accounts.cost,
            "seconds": self.seconds,
            "finished": self._meter.finished,
            "rate": self._meter.rate,
            "remaining": self._meter.remaining(self.seeds - self.done, self.active),
            "failures": self.failure_counts(),
        }
