"""Progress and outcome of a training run."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from agentflow.learner._groups import EpisodeResult
from agentflow.runs import MeasuredProgress, Phase, ResultRecord, html_card
from agentflow.trace import Usage

if TYPE_CHECKING:
    from agentflow.models import Accounts


class TrainStatus(Struct, frozen=True, kw_only=True):
    """Progress of a training run at one moment."""

    phase: Phase
    """Current phase."""
    phase_seconds: float = 0.0
    """Seconds since it began."""
    phase_episodes: int = 0
    """Number of episodes that ended for the current step or validation."""
    phase_total: int = 0
    """Expected number of them; 0: the phase has no episodes."""
    durations: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds that each phase took the last time."""
    tokens_per_second: float = 0.0
    """Tokens sampled per second, in this phase or the last one with episodes; 0: none yet."""
    no_signal: float | None = None
    """Share of the groups of the last step whose rewards are all equal."""
    step: int
    """Number of steps made."""
    steps: int | None
    """Number of steps of the run; `None`: determined by the tasks."""
    episodes: int
    """Number of episodes this process has run."""
    failed: dict[str, int] = field(default_factory=dict[str, int])
    """Number of them left out, by reason."""
    reward: float | None = None
    """Mean reward of the last step."""
    validation: float | None = None
    """Last score on the held-out tasks."""
    seconds: float = 0.0
    """Seconds since this process began."""
    rate: float = 0.0
    """Steps made per second; 0: none yet."""
    remaining: float | None = None
    """Estimated seconds to the last step; `None`: unknown."""
    tokens: int = 0
    """Prompt and completion tokens that this process used, apart from calls of a gateway."""
    cost: float = 0.0
    """Cost of them, of models with prices."""


_FIGURES = {
    Phase.ROLLOUTS: "seconds/rollout",
    Phase.STEP: "seconds/step",
    Phase.PUBLICATION: "seconds/publish",
    Phase.VALIDATION: "seconds/validation",
    Phase.WRITING: "seconds/checkpoint",
}
"""Figures of the seconds of phases."""


class TrainProgress(MeasuredProgress):
    """Counts steps and episodes of a training run, and measures its phases."""

    def __init__(
        self, steps: int | None, clock: Callable[[], float] = time.monotonic, *, overlaps: bool = False
    ) -> None:
        """Start counting.

        :param clock: monotonic seconds.
        :param overlaps: episodes of the next step run while a step is made.
        """
        super().__init__(clock)
        self._overlaps = overlaps
        self._reported: dict[Phase, float] = {}
        self._expected = 0
        self._tokens_per_second = 0.0
        self._no_signal: float | None = None
        self._count_anew()
        self.accounts: Accounts | None = None
        """Usage and budgets of the episodes."""
        self._steps = steps
        self._taken = Usage(), 0.0
        self._episodes = 0
        self._reward: float | None = None
        self._validation: float | None = None

    @contextmanager
    def during(self, phase: Phase, episodes: int = 0) -> Generator[None]:
        """Be in a phase inside the block.

        :param episodes: expected number of episodes.
        """
        before, self.phase, self._expected = self.phase, phase, episodes
        if phase is Phase.VALIDATION or (phase is Phase.ROLLOUTS and not self._overlaps):
            self._count_anew()
        yield
        # After an error it is still the phase, so that the end of the run has its name.
        if episodes:
            self._tokens_per_second = self._current_tokens_per_second
            if self._overlaps:
                self._count_anew()
        self.phase, self._expected = before, 0

    def _count_anew(self) -> None:
        self._sampled, self._phase_episodes, self._sampling_began = 0, 0, self._clock()

    @property
    def _current_tokens_per_second(self) -> float:
        seconds = self._clock() - self._sampling_began
        return self._sampled / seconds if self._sampled and seconds > 0 else self._tokens_per_second

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds of phases since the last call, and the rate of sampling, as figures of a step."""
        figures = {
            figure: self.spent[phase] - self._reported.get(phase, 0.0)
            for phase, figure in _FIGURES.items()
            if self.spent.get(phase, 0.0) > self._reported.get(phase, 0.0)
        }
        self._reported = dict(self.spent)
        if self._tokens_per_second:
            figures["episodes/sampled_per_second"] = self._tokens_per_second
        return figures

    def add_result(self, result: EpisodeResult) -> None:
        """Count an episode."""
        self._episodes += 1
        self._phase_episodes += 1
        self._sampled += result.sampled_tokens
        if result.failure is not None:
            self.failures[str(result.failure.kind)] += 1

    def add_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Count a step."""
        self.done = step
        self._reward = figures.get("reward/mean", self._reward)
        self._no_signal = figures.get("groups/no_signal", self._no_signal)
        self._validation = figures.get("validation/score", self._validation)

    def take_usage(self) -> dict[str, float]:
        """Return the usage of models since the last call, as figures of a step; empty if there is none."""
        if self.accounts is None:
            return {}
        used, cost = self.accounts.total, self.accounts.cost
        before, cost_before = self._taken
        self._taken = used, cost
        if used.calls == before.calls:
            return {}
        return {
            "usage/calls": used.calls - before.calls,
            "usage/prompt_tokens": used.prompt_tokens - before.prompt_tokens,
            "usage/completion_tokens": used.completion_tokens - before.completion_tokens,
            "usage/cost": cost - cost_before,
        }

    def status(self) -> TrainStatus:
        """Return the progress so far."""
        used = None if self.accounts is None else self.accounts.total
        return TrainStatus(
            phase=self.phase,
            phase_seconds=self.phase_seconds,
            phase_episodes=self._phase_episodes if self._expected else 0,
            phase_total=self._expected,
            durations={phase.value: seconds for phase, seconds in self.durations.items()},
            tokens_per_second=self._current_tokens_per_second if self._expected else self._tokens_per_second,
            no_signal=self._no_signal,
            step=self.done,
            steps=self._steps,
            episodes=self._episodes,
            failed=dict(sorted(self.failures.items())),
            reward=self._reward,
            validation=self._validation,
            seconds=self.seconds,
            rate=self._meter.rate,
            remaining=None if self._steps is None else self._meter.remaining(self._steps - self.done),
            tokens=0 if used is None else used.prompt_tokens + used.completion_tokens,
            cost=0.0 if self.accounts is None else self.accounts.cost,
        )


class TrainOutcome(Struct, frozen=True, kw_only=True):
    """Result of a training run."""

    steps: int
    """Number of steps made."""
    version: int
    """Number of steps that changed the weights."""
    figures: dict[str, float]
    """Figures of the last step."""
    output_dir: str
    """Folder of all output."""
    policy: str
    """Folder of the trained model, in Hugging Face format."""

    def record(self) -> dict[str, Any]:
        """Return the fields as a dictionary, which a notebook shows as a table. See docs/training.md."""
        return ResultRecord(structs.asdict(self), self._repr_html_())

    def _repr_html_(self) -> str:
        figures = [(name, f"{value:.6g}") for name, value in sorted(self.figures.items())]
        rows = [("policy", self.policy), ("output_dir", self.output_dir), *figures]
        return html_card(f"Training: {self.steps} steps, version {self.version}", rows)
