"""What runs in a process of its own: one database engine, with limits. Imports nothing of the rest of the house.

The modules name each other relatively: the process loads this folder alone, since the servers' packages would take
longer to load than most queries do to answer.
"""

from ._loop import main

__all__ = ["main"]
