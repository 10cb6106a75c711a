"""Durable record of runs: nothing is lost, nothing is done twice.

`async with open_journal("sqlite:///run.db")`, or a Postgres URL; `open_run` gives a `Run` with its seeds, and each seed has
a `Page` that stores every result in the order of arrival.
"""

from typing import TYPE_CHECKING

from agentflow.journal._page import BranchPage, MemoryPage, Page, Writing
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.journal._database import is_same_database, journal_hosts
    from agentflow.journal._journal import Journal, open_journal
    from agentflow.journal._reader import JournalNews, JournalReader, StoredRun, StoredSeed, open_reader
    from agentflow.journal._replicas import (
        LEASE_SECONDS,
        REFRESH_SECONDS,
        Publication,
        Replica,
        ReplicaTable,
        open_replicas,
    )
    from agentflow.journal._run import Run, RunCommands, SeedTaken
    from agentflow.journal._seeds import Counts, NewSeed, has_died, is_alive_here, this_process

__all__ = [
    "LEASE_SECONDS",
    "REFRESH_SECONDS",
    "BranchPage",
    "Counts",
    "Journal",
    "JournalNews",
    "JournalReader",
    "MemoryPage",
    "NewSeed",
    "Page",
    "Publication",
    "Replica",
    "ReplicaTable",
    "Run",
    "RunCommands",
    "SeedTaken",
    "StoredRun",
    "StoredSeed",
    "Writing",
    "has_died",
    "is_alive_here",
    "is_same_database",
    "journal_hosts",
    "open_journal",
    "open_reader",
    "open_replicas",
    "this_process",
]


# Code that only writes to a page loads no database.
__getattr__ = lazy_exports(
    __name__,
    {
        "._database": ["is_same_database", "journal_hosts"],
        "._journal": ["Journal", "open_journal"],
        "._reader": ["JournalNews", "JournalReader", "StoredRun", "StoredSeed", "open_reader"],
        "._replicas": [
            "LEASE_SECONDS",
            "REFRESH_SECONDS",
            "Publication",
            "Replica",
            "ReplicaTable",
            "open_replicas",
        ],
        "._run": ["Run", "RunCommands", "SeedTaken"],
        "._seeds": ["Counts", "NewSeed", "has_died", "is_alive_here", "this_process"],
    },
)
