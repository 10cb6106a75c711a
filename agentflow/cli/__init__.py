"""The command line: `agentflow synth`, `agentflow ctl`."""

from agentflow.cli._main import main, synth

__all__ = ["main", "synth"]
