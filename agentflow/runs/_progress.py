"""Progress of a run (its phase, its seeds, the consumption of its models), and parts of the reports on it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agentflow._terminal import printable
from agentflow.trajectory import Usage

if TYPE_CHECKING:
    from rich.table import Table

    from agentflow.models import Accounts, ModelSettings, OpenModel


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

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of the whole run."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values())


class RunProgress:
    """Counters of an active run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        :param clock: monotonic seconds.
        """
        self.phase = Phase.STARTING
        """Current phase."""
        self.seeds = 0
        """Number of seeds of the run."""
        self.done = 0
        """Number of finished seeds, as far as this process knows."""
        self.active = 0
        """Number of seeds that this process is working on."""
        self.models: Sequence[OpenModel] = ()
        """The engines, each once."""
        self.accounts: Accounts | None = None
        """Usage and budgets."""
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Seconds since this process began."""
        return self._clock() - self._began

    def status(self) -> RunStatus:
        """Return the current progress."""
        return RunStatus(**self._status_fields())

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
        }


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
