"""The journal: nothing lost, nothing twice."""

from agentflow.journal._page import Page

__all__ = ["Page"]
