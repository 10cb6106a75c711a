"""The offline engine: a pure function from a typed request to its answer, without weights or network.

See docs/offline.md.
"""

from agentflow.offline._engine import answer, usage_of

__all__ = ["answer", "usage_of"]
