"""Score of a path, from 0 to 100."""

from msgspec import Struct

from agentflow.synthesis._selection._paths import EvidencePath

DEPTH = 40.0
"""Points for evidence at every depth up to `max_depth`."""
INFORMATION = 30.0
"""Points for content that is entirely new."""
TOOLS = 30.0
"""Points for a different tool for each piece of evidence."""


class Score(Struct, frozen=True):
    """Score of a path and its parts."""

    total: float
    """From 0 to 100."""
    depth: float
    """Pieces of evidence as a share of the maximum depth."""
    information: float
    """Value of its content by the strategy, from 0 to 1."""
    tools: float
    """Number of tools as a share of the maximum for this path."""


class Scale(Struct, frozen=True):
    """Maxima by which paths of a tree are scored."""

    depth: int
    """Maximum depth of a path."""
    tools: int
    """Number of tools that the tree used."""

    def score(self, path: EvidencePath, information: float) -> Score:
        """Return the score of a path whose content has this value."""
        depth = min(1.0, len(path.evidence) / max(1, self.depth))
        tools = len(path.tools) / max(1, min(len(path.evidence), self.tools))
        total = DEPTH * depth + INFORMATION * information + TOOLS * tools
        return Score(*(round(share, 4) for share in (total, depth, information, tools)))
