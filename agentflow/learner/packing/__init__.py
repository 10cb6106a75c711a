"""Prefix packing: rows that share a prefix are packed as a tree, and each token is computed once. See docs/packing.md."""

from agentflow.learner.packing._pack import Packed, pack

__all__ = ["Packed", "pack"]
