"""Selection of the paths of a tree that questions are written about."""

from typing import TYPE_CHECKING

from msgspec import Struct, field

from agentflow.synthesis._selection._paths import EvidencePath, find_paths, similarity
from agentflow.synthesis._selection._score import Scale, Score
from agentflow.synthesis._selection._strategies import UserStrategy, find_strategy
from agentflow.trajectory import Tree

if TYPE_CHECKING:
    from agentflow.synthesis._config import SynthesisConfig

__all__ = ["EvidencePath", "Score", "Selection", "UserStrategy", "find_strategy", "select"]


class Selection(Struct, frozen=True):
    """Selected paths of a tree."""

    chosen: tuple[tuple[EvidencePath, Score], ...] = ()
    """Paths with their scores, in the order of selection."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Number of other paths, by reason."""


def select(tree: Tree, config: "SynthesisConfig") -> Selection:
    """Select the best paths whose content is not too similar.

    :raises ConfigurationError: if the user's own strategy can't be used.
    """
    paths, left_out = find_paths(tree, config.min_depth)
    if not paths:
        return Selection((), left_out)
    used = {node.action.tool for node in tree.nodes if node.action is not None}
    pick = find_strategy(config.selection_strategy)(tree, paths, Scale(config.max_depth, len(used)), config)
    remaining = paths
    chosen: list[tuple[EvidencePath, Score]] = []
    similar = 0
    while remaining and len(chosen) < config.max_selected_traj:
        best = pick(remaining, [path for path, _ in chosen])
        if best is None:
            break
        chosen.append(best)
        others = [path for path in remaining if path is not best[0]]
        remaining = [path for path in others if not _too_similar(path, best[0], config)]
        similar += len(others) - len(remaining)
    counts = {"too similar to a selected path": similar, "not among the best": len(remaining)}
    return Selection(tuple(chosen), left_out | {why: count for why, count in counts.items() if count})


def _too_similar(path: EvidencePath, other: EvidencePath, config: "SynthesisConfig") -> bool:
    return similarity(path.content, other.content) > config.path_similarity_threshold
