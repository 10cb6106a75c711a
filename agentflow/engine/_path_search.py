"""Searches over the paths of branching episodes: which decisions are made several times, and which paths go on."""

from collections.abc import Callable, Iterator, Sequence
from math import inf, log, sqrt
from statistics import fmean
from typing import Protocol

from agentflow.errors import ConfigurationError
from agentflow.trace import Task, Turn


class PathNode:
    """A path of a branching episode, up to its next decision or its answer."""

    def __init__(self, task: Task, path: tuple[int, ...], parent: "PathNode | None") -> None:
        self.task = task
        """The task."""
        self.path = path
        """Positions of the continuations that lead here."""
        self.parent = parent
        """Path without the last continuation; `None` for the root."""
        self.children: list[PathNode] = []
        """Continuations that were tried, without those that were merged into an equal one."""
        self.turns: tuple[Turn, ...] = ()
        """Turns so far."""
        self.surprise: float | None = None
        """Mean negative log-probability of the tokens of the last decision; `None` if the engine reports none."""
        self.value: float | None = None
        """Estimate of the guide, from 0 to 1; `None` without a guide."""
        self.share = 1
        """Number of answers that the paths from here stand for."""
        self.drawn = 1
        """Number of equal continuations that were sampled; one of them was run."""
        self.is_open = True
        """It waits at a decision, and may grow children."""
        self.is_answer = False
        """It ended with an answer."""

        self._tried = 0

    def next_positions(self, count: int) -> list[int]:
        """Return the positions of further continuations."""
        self._tried += count
        return list(range(self._tried - count, self._tried))

    @property
    def root(self) -> "PathNode":
        """Root of the tree."""
        return self if self.parent is None else self.parent.root

    def below(self) -> "Iterator[PathNode]":
        """Yield this node and all below it."""
        yield self
        for child in self.children:
            yield from child.below()

    def shares(self, count: int) -> list[int]:
        """Return the numbers of answers that so many continuations stand for."""
        if self.share < count:
            return [1] * count
        share, rest = divmod(self.share, count)
        return [share + (position < rest) for position in range(count)]


class PathSearch(Protocol):
    """Chooses how the paths of a task continue. See docs/engine.md."""

    @property
    def width(self) -> int:
        """Maximum number of paths at once, for which sandboxes are reserved."""
        ...

    @property
    def share(self) -> int:
        """Number of answers that the first decision stands for; it is divided among the continuations."""
        ...

    @property
    def revisits(self) -> bool:
        """A node that grew children stays open and may grow more; its state is kept until it is closed."""
        ...

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return nodes of the frontier with the number of children that each grows now; 0 closes a node.

        Called again once all paths wait at a decision or have ended, until it returns nothing or no node is open. It must
        depend on the nodes alone, so that a resumed task branches the same way.

        :param frontier: the open nodes, in the order of their paths.
        """
        ...


class EveryDecision:
    """Makes each decision for all answers that it stands for, at most so many times, and lets all paths answer.

    With as many answers, it draws the same as independent episodes, except that paths part later. Implements `PathSearch`.
    """

    revisits = False
    """A node grows once."""

    def __init__(self, width: int, leaves: int, at: Callable[[PathNode], bool] | None = None) -> None:
        """:param at: returns whether a decision may be made several times; `None`: every decision."""
        self.width = self.share = leaves
        """Number of answers, and maximum number of paths at once."""
        self._most = width
        self._at = at

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return all nodes."""
        return [
            (node, min(self._most, node.share) if self._at is None or self._at(node) else 1)
            for node in frontier
        ]


class UncertainDecisions:
    """Lets some paths answer, and then makes their most uncertain decisions again. Implements `PathSearch`."""

    revisits = True
    """Decisions are made again after their paths have answered."""

    def __init__(self, width: int, leaves: int) -> None:
        self.width = leaves
        """Maximum number of paths at once."""
        self.share = min(width, leaves)
        """Number of paths that answer first."""
        self._most = width
        self._repeated: set[tuple[int, ...]] = set()

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return the nodes without children; once all paths have answered, those whose decisions were least certain.

        :raises ConfigurationError: if the engine reports no log-probabilities.
        """
        first = [node for node in frontier if not node.children]
        if first:
            return [(node, self.share if node.parent is None else 1) for node in first]
        ends = [node for node in frontier[0].root.below() if node.is_answer]
        left = self.width - sum(node.share for node in ends)
        made = [node for node in frontier if node.parent is not None and node.path not in self._repeated]
        if any(node.children[0].surprise is None for node in made):
            raise ConfigurationError(
                "branching.at: uncertain needs log-probabilities of sampled tokens, and the model returns none; use every"
            )
        made.sort(key=lambda node: (-(node.children[0].surprise or 0.0), node.path))
        chosen: list[tuple[PathNode, int]] = []
        for node in made[: self._most]:
            count = min(self._most - 1, left)
            if count > 0:
                self._repeated.add(node.path)
                chosen.append((node, count))
                left -= count
        return chosen


class BestFirst:
    """Continues the path with the best value. Implements `PathSearch`."""

    share = 1
    """Answers are counted one by one."""
    revisits = False
    """A node grows once."""

    def __init__(self, width: int, leaves: int) -> None:
        self.width = width * leaves
        """Maximum number of paths at once."""
        self._children = width
        self._leaves = leaves

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return the best node; of equal ones, the longest and then the first."""
        if _answers(frontier[0]) >= self._leaves:
            return []
        best = max(frontier, key=lambda node: (_value(node), len(node.path), [-place for place in node.path]))
        return [(best, self._children)]


class Beam:
    """Continues the best paths of each level. Implements `PathSearch`."""

    share = 1
    """Answers are counted one by one."""
    revisits = False
    """A node grows once."""

    def __init__(self, width: int, leaves: int) -> None:
        self.width = leaves
        """Maximum number of paths at once."""
        self._children = width

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return all nodes: the best ones grow children, the others are closed."""
        kept = sorted(frontier, key=lambda node: (-_value(node), node.path))
        kept = kept[: max(1, (self.width - _answers(frontier[0])) // self._children)]
        return [(node, self._children if node in kept else 0) for node in frontier]


class TreeSearch:
    """Monte Carlo tree search: continues below the node with the best upper confidence bound. Implements `PathSearch`."""

    share = 1
    """Answers are counted one by one."""
    revisits = False
    """A node grows once; its children are compared with each other."""

    def __init__(self, width: int, leaves: int, exploration: float = 1.0) -> None:
        self.width = width * leaves
        """Maximum number of paths at once."""
        self._children = width
        self._leaves = leaves
        self._exploration = exploration

    def choose(self, frontier: Sequence[PathNode]) -> Sequence[tuple[PathNode, int]]:
        """Return the open node that is reached by taking the child with the best bound at each node."""
        node = frontier[0].root
        if _answers(node) >= self._leaves:
            return []
        while node.children:
            above = node
            growing = [child for child in node.children if any(_is_leaf(below) for below in child.below())]
            node = max(
                growing, key=lambda child: (self._bound(above, child), [-place for place in child.path])
            )
        return [(node, self._children)]

    def _bound(self, node: PathNode, child: PathNode) -> float:
        values = [below.value for below in child.below() if below.value is not None]
        if not values:
            return inf
        visits = sum(below.value is not None for below in node.below())
        return fmean(values) + self._exploration * sqrt(log(max(visits, 1)) / len(values))


def _answers(node: PathNode) -> int:
    return sum(below.is_answer for below in node.root.below())


def _is_leaf(node: PathNode) -> bool:
    return node.is_open and not node.children


def _value(node: PathNode) -> float:
    return 0.0 if node.value is None else node.value
