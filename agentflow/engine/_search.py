"""Search strategies: which nodes of a tree grow children, and how many."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agentflow.engine._sandboxes import BranchState, Unforkable
from agentflow.trace import Node, Verdict


class GrowthSettings(Struct, frozen=True, kw_only=True):
    """Shape and rules of a tree.

    Example::

        GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)
    """

    max_depth: int = 5
    """Number of actions from the root to the deepest leaf."""
    branching_factor: int = 2
    """Number of children of a node above `depth_threshold`."""
    depth_threshold: int = 3
    """Depth from which every node has one child."""
    action_similarity: float = 0.9
    """Similarity from which two searches count as duplicates, among siblings and on a path; above 1 disables it."""
    max_asks: int = 3
    """Maximum number of planner calls at a node until enough proposals are not duplicates."""
    merge_duplicates: bool = False
    """Merge duplicates instead of asking again: an action proposed twice at a node grows once with a count of two, and
    an action that exists elsewhere in the tree is allowed. Training needs this, because the policy must not be
    corrected."""
    on_unforkable: Unforkable = Unforkable.CHAIN
    """Policy for branches that cannot be isolated."""
    recovery_share: float = 0.2
    """Share of the nodes of a full tree that may be recovery children: the only child of a failed or empty node, which sees
    the failure and continues from the state after it. 0 disables them."""
    tips: str = ""
    """The user's guidance for exploration."""
    aims: tuple[tuple[str, ...], ...] = ()
    """Kinds of questions that the planner reads for, by turns of seeds; empty: none in particular."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    inputs: tuple[str, ...] = ()
    """Input folders and files as the tools see them, one line each, for the planner."""

    def children(self, depth: int) -> int:
        """Return the number of children of a node at this depth."""
        if depth >= self.max_depth:
            return 0
        return self.branching_factor if depth < self.depth_threshold else 1

    def aims_of(self, seed: int) -> tuple[str, ...]:
        """Return the kinds of questions that the planner of a seed reads for, by the seed's index."""
        return self.aims[seed % len(self.aims)] if self.aims else ()

    @property
    def recoveries(self) -> int:
        """Maximum number of recovery children of a tree."""
        size, width = 0, 1
        for depth in range(self.max_depth):
            width *= self.children(depth)
            size += width
        return int(self.recovery_share * size)

    @property
    def width(self) -> int:
        """Maximum number of nodes on a level."""
        return max(1, self.branching_factor) ** min(self.depth_threshold, self.max_depth)


class OpenNode(Struct, eq=False):
    """A node that may grow children."""

    path: tuple[int, ...]
    """Positions of the node and its ancestors."""
    node: Node
    """The node."""
    steps: tuple[Node, ...]
    """Nodes from the root to this one, without the root."""
    state: BranchState
    """State in which its children act, including one claim."""
    is_repairable: bool = False
    """Its action failed or returned nothing, and one child may repair it."""


class Search(Protocol):
    """Chooses the nodes of one tree that grow children: `LevelSearch`, or any class with these members.

    See docs/engine.md.
    """

    @property
    def width(self) -> int:
        """Maximum number of open nodes and their children, for which sandboxes are reserved."""
        ...

    def choose(self, frontier: Sequence[OpenNode]) -> Sequence[tuple[OpenNode, int]]:
        """Return nodes of the frontier with the number of children that each grows now; 0 closes a node.

        Called again with the nodes that are left and the new children, until it returns nothing or no node is left. It
        must depend on the nodes alone, so that a resumed tree grows the same way.

        :param frontier: the open nodes, ordered by the round in which they grew, then by path.
        """
        ...


class LevelSearch:
    """Grows whole levels, as the settings say. Implements `Search`."""

    def __init__(self, settings: GrowthSettings) -> None:
        self.width = settings.width
        """Maximum number of nodes on a level."""
        self._settings = settings
        self._recoveries = settings.recoveries

    def choose(self, frontier: Sequence[OpenNode]) -> Sequence[tuple[OpenNode, int]]:
        """Return all nodes. Of those that found nothing new, the first ones that can be repaired grow one child."""
        return [(node, self._children(node)) for node in frontier]

    def _children(self, open_node: OpenNode) -> int:
        children = self._settings.children(open_node.node.depth)
        if children == 0 or open_node.node.verdict is Verdict.NEW:
            return children
        if not open_node.is_repairable or self._recoveries == 0:
            return 0
        self._recoveries -= 1
        return 1
