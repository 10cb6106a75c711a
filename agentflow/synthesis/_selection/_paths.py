"""The paths of a tree that could be asked about."""

from functools import cached_property

from msgspec import Struct

from agentflow.text import content_word_pairs
from agentflow.trajectory import Node, Tree, Verdict, trajectory_id

__all__ = ["Content", "EvidencePath", "find_paths", "similarity"]

Content = frozenset[tuple[str, str]]
"""What observations say, as a set that can be compared."""
_NOTHING: Content = frozenset()


class EvidencePath(Struct, frozen=True, kw_only=True, dict=True):
    """A path from the root to the last node that told something new."""

    leaf: str
    """The node at its end."""
    nodes: tuple[Node, ...]
    """All its nodes but the root."""
    evidence: tuple[Node, ...]
    """Those of them that told something new."""
    content: Content
    """What its evidence says."""
    words: int
    """How much its evidence says, what is said twice counted twice."""

    @property
    def id(self) -> str:
        """The trajectory's id."""
        return trajectory_id(self.leaf)

    @cached_property
    def tools(self) -> frozenset[str]:
        """The tools that its evidence comes from."""
        return frozenset(node.action.tool for node in self.evidence if node.action is not None)


def find_paths(tree: Tree, min_depth: int) -> tuple[list[EvidencePath], dict[str, int]]:
    """The paths to every leaf, in path order, and how many were left out, by why.

    A path is cut back to its last evidence. What remains is left out if it has less than `min_depth` pieces of
    evidence, or is the beginning of another path.
    """
    contents = {node.id: _content(node) for node in tree.nodes if _is_evidence(node)}
    ends = [_last_evidence(tree, leaf) for leaf in tree.leaves()]
    inner = {node.id for end in ends if end is not None for node in tree.path(end.id)[:-1]}
    found: dict[str, EvidencePath] = {}
    left_out = {"no evidence": 0, "part of another path": 0, "too short": 0}
    for end in ends:
        if end is None:
            left_out["no evidence"] += 1
        elif end.id in inner or end.id in found:
            left_out["part of another path"] += 1
        else:
            nodes = tree.path(end.id)[1:]
            evidence = tuple(node for node in nodes if _is_evidence(node))
            if len(evidence) < min_depth:
                left_out["too short"] += 1
                continue
            found[end.id] = EvidencePath(
                leaf=end.id,
                nodes=nodes,
                evidence=evidence,
                content=_NOTHING.union(*(contents[node.id] for node in evidence)),
                words=sum(len(contents[node.id]) for node in evidence),
            )
    ordered = sorted(found.values(), key=lambda path: [node.position for node in path.nodes])
    return ordered, {why: count for why, count in left_out.items() if count}


def similarity(one: Content, other: Content) -> float:
    """How much of what both say is the same, from 0 to 1."""
    common = len(one & other)
    every = len(one) + len(other) - common
    return common / every if every else 1.0


def _content(node: Node) -> Content:
    said = content_word_pairs(node.observation.text)
    # A picture says what it says as a whole.
    pictures = node.observation.blobs
    return said.union((blob.hash, "") for blob in pictures) if pictures else said


def _is_evidence(node: Node) -> bool:
    return node.action is not None and node.verdict is Verdict.NEW


def _last_evidence(tree: Tree, leaf: Node) -> Node | None:
    return next((node for node in reversed(tree.path(leaf.id)) if _is_evidence(node)), None)
