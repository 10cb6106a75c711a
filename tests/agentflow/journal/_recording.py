"""Records entry after entry and reports each: `python -m tests.agentflow.journal._recording URL [FOLDER]`.

With a folder on a small disk it fills the disk, frees space and checks the entries.
"""

import os
import sys
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
from msgspec import Struct

from agentflow.errors import RunStopped
from agentflow.journal import NewSeed, Page, Run, open_journal, this_process
from agentflow.trace import Seed

WRITERS = 20


class Note(Struct, frozen=True):
    """Entry to record."""

    text: str


async def take_over(run: Run, owner: str) -> Seed:
    """Claim the one seed. Retry: a claim skips a seed while the server still ends a killed process's last transaction."""
    while not (claimed := await run.claim(owner, 1)):
        await anyio.lowlevel.checkpoint()
    return claimed[0]


async def record(page: Page, writer: int) -> None:
    """Record without end, and print each acknowledged entry."""
    for number in count():
        key = f"{os.getpid()}/{writer}/{number}"
        await page.record(key, Note(key * 20))
        # A single write, so that the end of the process cuts no line.
        os.write(1, f"{key}\n".encode())


async def record_until_killed(url: str) -> None:
    """Take the seed over and record."""
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        await run.add_seeds([NewSeed("a")])
        seed = await take_over(run, this_process())
        page = await run.open_page(seed)
        async with anyio.create_task_group() as tasks:
            for writer in range(WRITERS):
                tasks.start_soon(record, page, writer)


async def fill(url: str, folder: Path) -> None:
    """Record until the disk is full; then free space and check the entries."""
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * 5 * 2**20)
    known: dict[str, Note] = {}
    told: set[str] = set()

    async def record_and_remember(page: Page, writer: int) -> None:
        for number in count():
            key, note = f"{writer}/{number}", Note(str(number) * 2000)
            await page.record(key, note)
            known[key] = note

    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        seed = (await run.add_seeds([NewSeed("a")]))[0]
        page = await run.open_page(seed)
        try:
            async with anyio.create_task_group() as tasks:
                for writer in range(WRITERS):
                    tasks.start_soon(record_and_remember, page, writer)
        except* RunStopped as stopped:
            told.update(str(error) for error in stopped.exceptions)
        assert len(told) == 1, told
        sys.stdout.write(f"{told.pop()}\n")
        assert len(known) > WRITERS
        for again in (await run.open_page(seed), page):
            assert {key: again.recall(key, Note) for key in known} == known
        ballast.unlink()
        await page.record("room again", Note(""))
    async with open_journal(url) as journal:
        page = await (await journal.open_run("run", {})).open_page(seed)
        assert {key: page.recall(key, Note) for key in known} == known
        assert "room again" in page
    sys.stdout.write("all there\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        anyio.run(record_until_killed, sys.argv[1])
    else:
        anyio.run(fill, sys.argv[1], Path(sys.argv[2]))
