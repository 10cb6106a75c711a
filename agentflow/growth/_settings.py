"""How trees grow."""

from enum import StrEnum

from msgspec import Struct

__all__ = ["GrowthSettings", "Unforkable"]


class Unforkable(StrEnum):
    """What to do where a sandbox can't be forked and its path can't be replayed without harm."""

    CHAIN = "chain"
    """The first child goes on in its parent's sandbox, its siblings are not tried."""
    REFUSE = "refuse"
    """None of the siblings is tried."""


class GrowthSettings(Struct, frozen=True, kw_only=True):
    """How trees grow."""

    max_depth: int = 5
    """Actions from the root to the deepest leaf."""
    branching_factor: int = 2
    """Children of a node above `depth_threshold`."""
    depth_threshold: int = 3
    """From this depth on every node has one child."""
    action_similarity: float = 0.9
    """From here on two searches are the same search, among siblings and on a path; above 1: never."""
    max_asks: int = 3
    """How often a node's planner is asked at most, until it has offered enough that is not a duplicate."""
    merge_duplicates: bool = False
    """A duplicate is not asked for again. What is proposed twice at one node grows once and counts twice, and what
    stands elsewhere in the tree grows here too: for training, where nothing corrects what the policy does."""
    on_unforkable: Unforkable = Unforkable.CHAIN
    """What to do where branches can't be kept apart."""
    tips: str = ""
    """The user's guidance for exploring."""
    seed_description: str = ""
    """What seeds are in this run."""

    def children(self, depth: int) -> int:
        """How many children a node at this depth is to have."""
        if depth >= self.max_depth:
            return 0
        return self.branching_factor if depth < self.depth_threshold else 1

    @property
    def width(self) -> int:
        """How many nodes its widest level can have."""
        return max(1, self.branching_factor) ** min(self.depth_threshold, self.max_depth)
