"""What the learner is given: episodes, and what they were worth."""

from msgspec import Struct, field

from agentflow.trajectory import Tokens

__all__ = ["Sample"]


class Sample(Struct, frozen=True, kw_only=True):
    """An episode as the learner sees it: the calls of the roles that are trained, and the worth of the whole.

    The samples of one task are its group: their rewards are compared with each other.
    """

    task: str
    """The task, which is the group."""
    id: str
    """The episode, of its own among all."""
    reward: float
    """What the episode was worth; every call of it gets the same."""
    calls: tuple[Tokens, ...]
    """The calls that are trained, in order: exactly what was read and what was sampled."""
    temperature: float = 1.0
    """What they were sampled at; log-probabilities are those of the distribution at this temperature."""
    multiplicity: int = 1
    """How often it was drawn: what came several times stands once and weighs as much."""
    details: dict[str, float] = field(default_factory=dict[str, float])
    """Figures of the episode for the report: turns, errors of tools."""
