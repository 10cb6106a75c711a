"""Progress of a run (its phase, its seeds, the consumption of its models), and parts of the reports on it."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field

from agentflow._terminal import printable
from agentflow.trajectory import Usage

if TYPE_CHECKING:
    from rich.table import Table

    from agentflow.models import Accounts, ModelSettings, OpenModel


_LAST_CHANGES = 201
_UNITS = (("s", 1), ("min", 60), ("h", 3600), ("day", 86400))
_SHOWN_KINDS = 8
_NAME_CHARS = 40


class Phase(StrEnum):
    """Phase of a run. The set is closed."""

    STARTING = "starting"
    """Resources are being opened."""
    GROWING = "growing"
    """Trees and paths grow."""
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


class MeasuredProgress:
    """Phase of a run and the number of its finished units, with their rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start the clock.

        :param clock: monotonic seconds.
        """
        self.failures: Counter[str] = Counter()
        """Failures that this process saw, by kind."""
        self._meter = ThroughputMeter(clock)
        self._phase = Phase.STARTING
        self._phase_changed = anyio.Event()
        self._done = 0
        self._clock = clock
        self._began = clock()

    @property
    def phase(self) -> Phase:
        """Current phase. The rate is measured while it grows."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        self._phase_changed.set()
        self._phase_changed = anyio.Event()
        if phase is Phase.GROWING:
            self._meter.start(self._done)
        else:
            self._meter.pause()

    async def wait_for_phase_after(self, known: str) -> None:
        """Wait until the phase is another one."""
        while self._phase.value == known:
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

    def _status_fields(self) -> dict[str, Any]:
        engines = [model.statistics() for model in self.models]
        accounts = self.accounts
        failures = self.failures.copy()
        for engine in engines:
            failures.update({f"model {kind}": count for kind, count in engine.failures_by_kind.items()})
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
            "failures": dict(failures.most_common()),
        }


def speed_text(rate: float, remaining: float | None) -> str:
    """Return the rate and the estimated time to the end: `4.2/min, ETA 1 h 05 min`; a dash stands for unknown.

    >>> speed_text(0.07, 3900)
    '4.2/min, ETA 1 h 05 min'
    """
    unit, each = next((one for one in _UNITS if rate * one[1] >= 1), _UNITS[-1])
    return f"{f'{rate * each:.1f}/{unit}' if rate else '–'}, ETA {_duration(remaining)}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {smaller}"
    return f"{whole} s"


def failures_text(failures: Mapping[str, int]) -> str:
    """Return failures by kind in one line, the most frequent first; long names and long lists are cut.

    >>> failures_text({"tool timeout": 3, "model rate_limited": 1})
    'tool timeout 3, model rate_limited 1'
    """
    named = sorted(failures.items(), key=lambda kind: -kind[1])
    shown = [f"{one_line(name, _NAME_CHARS)} {count}" for name, count in named[:_SHOWN_KINDS]]
    others = sum(count for _, count in named[_SHOWN_KINDS:])
    return ", ".join([*shown, *([f"others {others}"] if others else [])]) or "none"


def one_line(text: str, limit: int) -> str:
    """Return a text as one line without control characters, cut to a number of characters.

    >>> one_line("a very\\nlong name", 9)
    'a very l…'
    """
    # A long text is cut first: only its beginning is shown.
    line = " ".join(printable(text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def cost_by_role(models: "Mapping[str, ModelSettings]", usage: Mapping[str, Usage]) -> dict[str, float]:
    """Return the cost by role, of models with prices."""
    return {
        role: round(model.cost(usage.get(role, Usage())), 6)
        for role, model in models.items()
        if model.known_prices is not None
    }


def prices_as_of(models: "Iterable[ModelSettings]") -> str:
    """Return the date of the built-in prices if one of the models uses them, else an empty text."""
    return max((str(model.prices_as_of) for model in models if model.prices_as_of), default="")


def cost_text(cost: Mapping[str, float], as_of: str, kept: int = 0, unit: str = "") -> str:
    """Return the cost in one line, with the date of built-in prices.

    :param kept: number of results that it paid for.
    :param unit: name of one of them.
    """
    total = sum(cost.values())
    each = f", {total / kept:.4f} per {unit}" if kept else ""
    if not as_of:
        return f"{total:.4f}{each}, by the prices of the settings"
    return (
        f"{total:.4f}{each} (US dollars, list prices as of {as_of}; `prices` in the settings overrides them)"
    )


def report_table(rows: Iterable[tuple[str, str]]) -> "Table":
    """Return a table of names and texts for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(printable(name), Text(printable(text)))
    return table


def role_names(models: Mapping[str, str]) -> str:
    """Return the model that all roles share, or each role with its model."""
    shared = set(models.values())
    return shared.pop() if len(shared) == 1 else ", ".join(f"{role} {name}" for role, name in models.items())


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts in one line: `timeout 2, refused 1`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
