"""Names that follow from what they name: the same run, seed and path give the same ids everywhere."""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from agentflow.trajectory._node import Seed

__all__ = ["digest", "node_id", "trajectory_id", "tree_id"]

_CANONICAL = msgspec.json.Encoder(order="deterministic")


def digest(value: object, size: int = 8) -> str:
    """A short hexadecimal digest of anything that can be written as JSON; keys are sorted first."""
    return blake2b(_CANONICAL.encode(value), digest_size=size).hexdigest()


def tree_id(run: str, seed: Seed) -> str:
    """The tree that this seed grows in this run."""
    return f"tree_{digest([run, seed.index, seed.id, seed.content, seed.kwargs])}"


def node_id(tree: str, path: Iterable[int]) -> str:
    """The node at these positions (of each ancestor among its siblings, root's children first); none: the root."""
    return f"node_{digest([tree, list(path)])}"


def trajectory_id(leaf: str) -> str:
    """The path that ends at this node."""
    return f"traj_{digest(leaf)}"
