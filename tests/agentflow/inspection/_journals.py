"""Journals written by hand."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from agentflow.engine import LevelRecord
from agentflow.inspection import RunReader
from agentflow.journal import Journal, NewSeed, Page, Run, open_journal, this_process
from agentflow.trace import (
    Action,
    ActionOutcome,
    Blob,
    Isolation,
    Node,
    Observation,
    Plan,
    Reply,
    Seed,
    Text,
    Tokens,
    Usage,
    Verdict,
)

OnlyRun = Callable[[str | Path], RunReader]
"""Opens the only run of a place."""

SETTINGS = {"max_depth": 4, "branching_factor": 2, "depth_threshold": 4}


def action(spot: str, text: str, *images: Blob) -> Node:
    """Return the record of an action."""
    outcome = ActionOutcome(Observation((Text(text), *images)))
    call = Action("bash_run", {"command": f"echo {spot}"})
    return Node(outcome=outcome, isolation=Isolation.FORK, action=call, intent=f"try {spot}")


async def grow(page: Page, spots: Sequence[str], levels: int, **others: tuple[Verdict, str]) -> None:
    """Record nodes, the planner's call at the root, and the verdicts of the first levels."""
    tokens = Tokens(prompt=(1, 2), sampled=(3, 4), logprobs=(-0.5, -0.25), version="1")
    await page.note(
        "plan/root/0", Reply(Plan(()), usage=Usage(1, 2, 2), tokens=tokens, reasoning="Look around.")
    )
    for spot in spots:
        await page.note(f"act/{spot}", action(spot, f"Saw {spot} of the harbour."))
    for depth in range(1, levels + 1):
        found = {
            spot.replace("_", "-"): each for spot, each in others.items() if spot.count("_") == depth - 1
        }
        await page.note(
            f"level/{depth}", LevelRecord({spot.removeprefix("n"): each for spot, each in found.items()})
        )


@asynccontextmanager
async def claimed(
    url: str | Path, names: Sequence[str] = ("a", "b")
) -> AsyncGenerator[tuple[Journal, Run, list[Seed]]]:
    """Open a journal with a run whose first seed is claimed by this process."""
    async with open_journal(url) as journal:
        run = await journal.open_run("run", SETTINGS)
        await run.add_seeds([NewSeed(f"Explore {name}", {}, name) for name in names])
        yield journal, run, await run.claim(this_process(), 1)


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a folder."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}
