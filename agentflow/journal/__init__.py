"""The journal: nothing lost, nothing twice.

`async with open_journal("sqlite:///run.db")` or a Postgres address; `open_run` gives a `Run` with its seeds, each seed has
a `Page` on which every result is written, in the order in which they came.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentflow.journal._page import Page, Writing

if TYPE_CHECKING:
    from agentflow.journal._journal import Journal, open_journal
    from agentflow.journal._leases import Counts
    from agentflow.journal._owners import this_process
    from agentflow.journal._run import Run
    from agentflow.journal._seeds import NewSeed
    from agentflow.journal._writer import SeedTaken

__all__ = [
    "Counts",
    "Journal",
    "NewSeed",
    "Page",
    "Run",
    "SeedTaken",
    "Writing",
    "open_journal",
    "this_process",
]

# Who only writes on a page loads no database.
_LATER = {
    "Counts": "_leases",
    "Journal": "_journal",
    "NewSeed": "_seeds",
    "Run": "_run",
    "SeedTaken": "_writer",
    "open_journal": "_journal",
    "this_process": "_owners",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
