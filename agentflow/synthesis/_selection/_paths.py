"""Candidate paths of a tree."""

from functools import cached_property

from msgspec import Struct

from agentflow.text import content_word_pairs
from agentflow.trajectory import Node, Tree, Verdict, trajectory_id

Content = frozenset[tuple[str, str]]
"""Content of observations as a comparable set of word pairs."""
_NOTHING: Content = frozenset()


class EvidencePath(Struct, frozen=True, kw_only=True, dict=True):
    """Path from the root to its last node with new evidence."""

    leaf: str
    """Id of its last node."""
    nodes: tuple[Node, ...]
    """Its nodes without the root."""
    evidence: tuple[Node, ...]
    """Nodes with the verdict `new`."""
    content: Content
    """Content of its evidence."""
    words: int
    """Amount of content, with repetitions."""

    @property
    def id(self) -> str:
        """Id of the trajectory."""
        return trajectory_id(self.leaf)

    @cached_property
    def tools(self) -> frozenset[str]:
        """Tools that produced its evidence."""
        return frozenset(node.action.tool for node in self.evidence if node.action is not None)


def find_paths(tree: Tree, min_depth: int) -> tuple[list[EvidencePath], dict[str, int]]:
    """Return the path to each leaf, in path order, and the number of paths left out, by reason.

    A path ends at its last evidence. It is left out if it has fewer than `min_depth` pieces of evidence, or is a prefix of
    another path.
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
    """Return the share of common content, from 0 to 1."""
    common = len(one & other)
    every = len(one) + len(other) - common
    return common / every if every else 1.0


def _content(node: Node) -> Content:
    said = content_word_pairs(node.observation.text)
    # A picture counts as one item of content.
    pictures = node.observation.blobs
    return said.union((blob.hash, "") for blob in pictures) if pictures else said


def _is_evidence(node: Node) -> bool:
    return node.action is not None and node.verdict is Verdict.NEW


def _last_evidence(tree: Tree, leaf: Node) -> Node | None:
    return next((node for node in reversed(tree.path(leaf.id)) if _is_evidence(node)), None)
