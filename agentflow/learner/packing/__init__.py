"""Packing: rows that begin alike become a tree, in which every token stands once."""

from agentflow.learner.packing._pack import pack
from agentflow.learner.packing._packed import Packed

__all__ = ["Packed", "pack"]
