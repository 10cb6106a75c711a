"""Search strategies: which nodes of a tree grow children, and how many."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agentflow.engine._growth_settings import GrowthSettings
from agentflow.engine._sandboxes import BranchState
from agentflow.trace import Node, Verdict


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
