"""A real Chromium before a live view of a tree that a test grows."""

import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from agentflow.dashboard import ServedView
from agentflow.engine import LevelRecord
from agentflow.inspection import RunCollection
from agentflow.journal import Journal, NewSeed, Run, open_journal, this_process
from agentflow.journal import Page as JournalPage
from agentflow.trace import (
    Action,
    ActionOutcome,
    Blob,
    Failure,
    Isolation,
    Node,
    Observation,
    Plan,
    Reply,
    Text,
    Verdict,
)

AXE = Path(__file__).parents[2] / "node/node_modules/axe-core/axe.min.js"
FIRST = "article[aria-label='Seed']"
"""The page of a seed, once it is drawn."""
SECRET = "agentflow.secret"
"""Key of the secret in the storage of the page."""
_GUARD_MS = 60_000
"""Guard against hanging: a busy machine draws slowly."""


@asynccontextmanager
async def open_chromium() -> AsyncGenerator[Browser]:
    """Start Chromium without a window."""
    # Debian's `chromium` is a script around the first.
    found = map(shutil.which, ("/usr/lib/chromium/chromium", "chromium", "chromium-browser"))
    program = next((each for each in found if each), None)
    if program is None:
        pytest.fail("chromium is missing; `make test` installs it")
    expect.set_options(timeout=_GUARD_MS)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, chromium_sandbox=False)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser, view: ServedView, path: str, *, width: int = 1280, height: int = 800, dark: bool = False
) -> AsyncGenerator[Page]:
    """Open a path of a view in a new profile; an error of a script fails the test."""
    size: ViewportSize = {"width": width, "height": height}
    context = await browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
    errors: list[str] = []
    try:
        context.set_default_timeout(_GUARD_MS)
        page = await context.new_page()
        page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
        # The page asks for data once it has stored the secret.
        async with page.expect_request("**/api/r**"):
            await page.goto(view.link(path))
        yield page
    finally:
        await context.close()
    assert errors == []


class GrownTree:
    """Journal with one seed, whose nodes the test adds."""

    def __init__(self, run: Run, page: JournalPage) -> None:
        self.run = run
        self._page = page

    async def grow(
        self,
        spot: str,
        *texts: str,
        blobs: Sequence[Blob] = (),
        failure: Failure | None = None,
        intent: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Commit a node."""
        action = Action("web_visit", dict(arguments or {"url": f"https://example.org/{spot}"}))
        parts = (*(Text(text) for text in texts), *blobs)
        outcome = ActionOutcome(Observation(parts), failure)
        record = Node(
            outcome=outcome, isolation=Isolation.FORK, action=action, intent=intent or f"Read page {spot}"
        )
        await self._page.note(f"act/{spot}", record)
        await self._page.settle()

    async def plan(self, spot: str, reasoning: str) -> None:
        """Commit a plan of the actions below a node."""
        reply: Reply[Plan] = Reply(Plan(()), reasoning=reasoning)
        await self._page.note(f"plan/{spot or 'root'}/0", reply)
        await self._page.settle()

    async def judge(self, depth: int, verdicts: Mapping[str, tuple[Verdict, str]]) -> None:
        """Commit the verdicts of a level; other nodes of it are new."""
        await self._page.note(f"level/{depth}", LevelRecord(dict(verdicts)))
        await self._page.settle()


@asynccontextmanager
async def grown_tree(file: Path, seed: str) -> AsyncGenerator[GrownTree]:
    """Yield a tree in a new journal, held by this process as by a run in progress."""
    async with open_journal(file) as journal:
        yield await _claimed(journal, seed)


async def _claimed(journal: Journal, seed: str) -> GrownTree:
    run = await journal.open_run("grown", {})
    await run.add_seeds([NewSeed(seed)])
    (claimed,) = await run.claim(this_process(), 1)
    return GrownTree(run, await run.open_page(claimed))


def path_of_seed(runs: RunCollection) -> str:
    """Return the path of the only seed."""
    return f"/r/{runs.runs()[0].id}/s/seed_001"


async def serious_findings(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core."""
    # Evaluated by the debugger, which no policy of the page holds back.
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = msgspec.convert(
        await page.evaluate("axe.run().then((result) => result.violations)"), list[dict[str, Any]]
    )
    return [
        f"{each['id']}: {each['nodes'][0]['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
