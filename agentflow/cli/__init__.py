"""The `agentflow` command."""

from agentflow.cli._main import main, synth

__all__ = ["main", "synth"]
