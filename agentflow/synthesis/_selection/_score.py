"""What a path is worth, from 0 to 100."""

from msgspec import Struct

from agentflow.synthesis._selection._paths import EvidencePath

__all__ = ["DEPTH", "INFORMATION", "TOOLS", "Scale", "Score"]

DEPTH = 40.0
"""Points for a path whose evidence is as deep as the tree may get."""
INFORMATION = 30.0
"""Points for a path that says something new all along."""
TOOLS = 30.0
"""Points for a path on which each piece of evidence comes from another tool."""


class Score(Struct, frozen=True):
    """What a path is worth, and why."""

    total: float
    """From 0 to 100."""
    depth: float
    """Pieces of evidence, as a share of the depth that the tree may have."""
    information: float
    """What it says, from 0 to 1, in the strategy's measure."""
    tools: float
    """Different tools, as a share of as many as the path could have."""


class Scale(Struct, frozen=True):
    """What paths of a tree are measured by."""

    depth: int
    """The deepest that a path may be."""
    tools: int
    """How many different tools the tree used."""

    def score(self, path: EvidencePath, information: float) -> Score:
        """The path's score, if that is what its content is worth."""
        depth = min(1.0, len(path.evidence) / max(1, self.depth))
        tools = len(path.tools) / max(1, min(len(path.evidence), self.tools))
        total = DEPTH * depth + INFORMATION * information + TOOLS * tools
        return Score(*(round(share, 4) for share in (total, depth, information, tools)))
