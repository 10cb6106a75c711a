"""Worker process: one database engine, with limits. It does not import the rest of the code base.

The modules use relative imports because the process loads only this directory: loading the servers' packages would take
longer than most queries.
"""

from ._main import main

__all__ = ["main"]
