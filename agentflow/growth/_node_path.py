"""Where a node stands in its tree, and what its planner said there."""

from collections.abc import Sequence

from agentflow.journal import Page
from agentflow.trajectory import Node, Plan, Reply, Tree

__all__ = ["plans_of", "spot", "spots_of"]


def spot(path: Sequence[int]) -> str:
    """A node's place in its tree, as it stands in the keys of the journal."""
    return "-".join(map(str, path)) or "root"


def spots_of(nodes: Sequence[Node]) -> dict[str, str]:
    """The place of each node of a tree, by its id; no child stands before its parent."""
    paths: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        paths[node.id] = () if node.parent is None else (*paths[node.parent], node.position)
    return {node: spot(path) for node, path in paths.items()}


def plans_of(tree: Tree, page: Page) -> dict[str, tuple[Reply[Plan], ...]]:
    """What was said each time that the planner was asked at a node, by the node's id; nodes that never were are not there."""
    found: dict[str, tuple[Reply[Plan], ...]] = {}
    for node, place in spots_of(tree.nodes).items():
        replies: list[Reply[Plan]] = []
        while (reply := page.recall(f"plan/{place}/{len(replies)}", Reply[Plan])) is not None:
            replies.append(reply)
        if replies:
            found[node] = tuple(replies)
    return found
