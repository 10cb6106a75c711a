"""Progress of a synthesis."""

from collections import Counter, deque
from collections.abc import Callable

from msgspec import Struct

from agentflow.runs import RunProgress, RunStatus
from agentflow.trace import Node, Seed

_PREVIEWS = 2


class PairPreview(Struct, frozen=True):
    """A pair or a task that was accepted just now."""

    question: str
    """The question, or the instruction of a task."""
    answer: str
    """The answer; empty if a state solves the task."""


class SynthesisStatus(RunStatus, frozen=True, kw_only=True):
    """Progress of a synthesis at one moment."""

    nodes: dict[str, int]
    """Number of nodes by verdict, of the trees that this process grew or resumed."""
    questions: int
    """Number of pairs that this process accepted."""
    rejected: int
    """Number of drafts that it rejected."""
    tasks: int = 0
    """Number of tasks that it accepted."""
    latest: tuple[PairPreview, ...] = ()
    """The last pairs or tasks that it accepted, the newest first."""


class SynthesisProgress(RunProgress):
    """Counters of an active synthesis."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.questions = 0
        """Number of accepted pairs."""
        self.tasks = 0
        """Number of accepted tasks."""
        self.rejected = 0
        """Number of rejected drafts."""
        self._nodes: Counter[str] = Counter()
        self._latest: deque[PairPreview] = deque(maxlen=_PREVIEWS)

    def count_node(self, seed: Seed, node: Node, recalled: bool) -> None:
        """Count a node, and its failure unless that was counted when it happened."""
        if node.parent is not None:
            self._nodes[node.verdict.value] += 1
        if node.failure is not None and not recalled:
            self.failures[f"tool {node.failure.kind}"] += 1

    def preview(self, question: str, answer: str) -> None:
        """Remember an accepted pair or task for a while."""
        self._latest.appendleft(PairPreview(question, answer))

    def status(self) -> SynthesisStatus:
        """Return the current progress."""
        return SynthesisStatus(
            **self._status_fields(),
            nodes=dict(sorted(self._nodes.items())),
            questions=self.questions,
            rejected=self.rejected,
            tasks=self.tasks,
            latest=tuple(self._latest),
        )
