"""The demonstration that `make run` shows: one sandbox, forked while it is live."""

from agentflow.demo._story import main

__all__ = ["main"]
