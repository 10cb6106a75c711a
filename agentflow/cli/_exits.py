"""What a command's exit status says."""

from enum import IntEnum

__all__ = ["EXITS", "Exit"]


class Exit(IntEnum):
    """The exit statuses of all commands."""

    DONE = 0
    """All is done."""
    FAILED = 1
    """Something went wrong that nobody expected; one line on stderr says what."""
    REFUSED = 2
    """The settings or arguments can't be used; nothing was begun."""
    STOPPED = 3
    """It ended early and cleanly (a budget, the model, the disk, somebody's wish); the same command goes on."""
    INTERRUPTED = 130
    """Ctrl-C, a signal or a closed terminal ended it cleanly; the same command goes on."""


EXITS = """exit status:
  0    done
  1    failed; one line on stderr says why
  2    the settings or arguments can't be used, nothing was begun
  3    stopped early (a budget, the model, the journal, agentflow ctl stop); the same command goes on
  130  interrupted (Ctrl-C, SIGTERM, a closed terminal or pipe); the same command goes on"""
