"""Synthesis as a long-running program: `python -m agentflow.supervisor [--config FILE] [key=value …]`."""

import sys

from agentflow.cli import synth

__all__ = ["main"]


def main() -> int:
    """Run it with the arguments of this process and return the exit status."""
    return synth(prog="python -m agentflow.supervisor")


if __name__ == "__main__":
    sys.exit(main())
