"""How far a rollout is."""

from collections.abc import Callable

from msgspec import Struct, field

from agentflow.rollout._result import Result
from agentflow.runs import Phase, RunProgress
from agentflow.trajectory import Usage

__all__ = ["Progress", "RolloutStanding"]


class RolloutStanding(Struct, frozen=True, kw_only=True):
    """How far a rollout is, at one moment."""

    phase: Phase
    """What it is doing."""
    tasks: int
    """Tasks that the run has, each sample counted."""
    done: int
    """Those that are finished."""
    at_work: int
    """Those in work in this process."""
    failed: int
    """Those that this process could not finish with an answer."""
    score: float | None
    """The mean of what this process scored; `None`: nothing yet."""
    calls_in_flight: int
    """Requests to models that have no answer yet."""
    calls_failed: int
    """Calls of models that failed for good."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """What models consumed, by role, in the whole run."""
    cost: float = 0.0
    """What that cost, by the prices given."""
    seconds: float = 0.0
    """Since this process began."""

    @property
    def tokens(self) -> int:
        """Tokens read and written, in the whole run."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values())


class Progress(RunProgress):
    """Counts while a rollout goes on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._failed = 0
        self._scored = 0
        self._score = 0.0

    def saw(self, result: Result) -> None:
        """A task is finished."""
        self._failed += result.failure is not None
        if result.scored is not None:
            self._scored += 1
            self._score += result.score

    def standing(self) -> RolloutStanding:
        """How far it is now."""
        engines = self.statistics()
        return RolloutStanding(
            phase=self.phase,
            tasks=self.seeds,
            done=self.done,
            at_work=self.open_trees,
            failed=self._failed,
            score=self._score / self._scored if self._scored else None,
            calls_in_flight=sum(engine.in_flight for engine in engines),
            calls_failed=sum(engine.failures for engine in engines),
            usage=self.usage,
            cost=self.cost,
            seconds=self.seconds,
        )
