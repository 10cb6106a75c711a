"""Journals of large runs, written directly into their tables: a tree of 100,000 nodes takes seconds."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import msgspec

from agentflow.engine import LevelRecord
from agentflow.journal import NewSeed, open_journal
from agentflow.trace import (
    Action,
    ActionOutcome,
    Isolation,
    Node,
    Observation,
    Plan,
    Proposal,
    Reply,
    Text,
    Usage,
    Verdict,
)

_WORDS = "The harbour light of Brenn was built in 1834 by Ada Holm and stands on the western mole. "


def write_large_run(file: Path, seeds: int, nodes: int, chars: int = 1_200, branches: int = 2) -> None:
    """Write the journal of a run whose seeds have as many nodes each; every eleventh node has failed.

    :param chars: length of an observation.
    :param branches: children of a node.
    """
    anyio.run(_create, file, seeds)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        (run,) = connection.execute("SELECT id FROM agentflow_runs").fetchone()
        insert = "INSERT INTO agentflow_entries (run, seed, key, ordinal, body) VALUES (?, ?, ?, ?, ?)"
        for seed in range(seeds):
            connection.execute("BEGIN")
            rows = (
                (run, seed, key, place, body)
                for place, (key, body) in enumerate(_entries(nodes, chars, branches))
            )
            connection.executemany(insert, rows)
            result = (run, seed, b'{"pairs":[],"tree":null}')
            connection.execute("INSERT INTO agentflow_harvests (run, seed, body) VALUES (?, ?, ?)", result)
            connection.execute("COMMIT")
        connection.execute("UPDATE agentflow_seeds SET done = TRUE, claims = 1")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _create(file: Path, seeds: int) -> None:
    async with open_journal(file) as journal:
        run = await journal.open_run("large", {"max_depth": 20, "branching_factor": 2, "depth_threshold": 20})
        await run.add_seeds([NewSeed(f"Explore harbour {number}") for number in range(seeds)])


def _entries(nodes: int, chars: int, branches: int) -> Iterator[tuple[str, bytes]]:
    text = (_WORDS * (chars // len(_WORDS) + 1))[:chars]
    level, made, depth = [""], 0, 0
    while made < nodes:
        children: list[str] = []
        depth += 1
        for parent in level:
            count = min(branches, nodes - made - len(children))
            if count <= 0:
                break
            plan = Plan(
                tuple(Proposal(f"try {number}", "bash_run", {"command": "ls"}) for number in range(count))
            )
            yield f"plan/{parent or 'root'}/0", msgspec.json.encode(Reply(plan, usage=Usage(1, 900, 40)))
            children += [f"{parent}-{number}" if parent else str(number) for number in range(count)]
        others: dict[str, tuple[Verdict, str]] = {}
        for place, spot in enumerate(children, made):
            outcome = ActionOutcome(Observation((Text(f"{spot}: {text}"),)))
            call = Action("bash_run", {"command": f"cat {spot}.txt"})
            yield (
                f"act/{spot}",
                msgspec.json.encode(
                    Node(outcome=outcome, isolation=Isolation.FORK, action=call, intent=f"read {spot}")
                ),
            )
            if place % 11 == 10:
                others[spot] = (Verdict.ERROR, "exit code 1")
        yield f"level/{depth}", msgspec.json.encode(LevelRecord(others))
        made += len(children)
        level = children
