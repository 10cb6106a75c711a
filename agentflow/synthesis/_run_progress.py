"""How far a run is."""

from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from agentflow.runs import Phase, RunProgress
from agentflow.trajectory import Node, Seed, Usage

__all__ = ["Progress", "Standing"]


class Standing(Struct, frozen=True, kw_only=True):
    """How far a run is, at one moment."""

    phase: Phase
    """What it is doing."""
    seeds: int
    """Seeds that the run has."""
    done: int
    """Seeds that are finished."""
    open_trees: int
    """Seeds in work in this process."""
    nodes: dict[str, int]
    """Nodes by verdict, of the trees that this process grew or went on with."""
    questions: int
    """Pairs that this process accepted."""
    rejected: int
    """Drafts that it rejected."""
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
    """Counts while a run goes on; cheap to tell, and to ask."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.questions = 0
        """Pairs that were accepted."""
        self.rejected = 0
        """Drafts that were rejected."""
        self._nodes: Counter[str] = Counter()

    def saw_node(self, seed: Seed, node: Node) -> None:
        """A node is there."""
        if node.parent is not None:
            self._nodes[node.verdict.value] += 1

    def standing(self) -> Standing:
        """How far it is now."""
        engines = self.statistics()
        return Standing(
            phase=self.phase,
            seeds=self.seeds,
            done=self.done,
            open_trees=self.open_trees,
            nodes=dict(sorted(self._nodes.items())),
            questions=self.questions,
            rejected=self.rejected,
            calls_in_flight=sum(engine.in_flight for engine in engines),
            calls_failed=sum(engine.failures for engine in engines),
            usage=self.usage,
            cost=self.cost,
            seconds=self.seconds,
        )
