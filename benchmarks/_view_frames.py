"""Frames of the page of a large tree in a real Chromium, while it is scrolled by a script and while it grows."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
from playwright.async_api import Page, expect

from agentflow.dashboard import open_view
from agentflow.inspection import RunCollection, open_runs
from tests.agentflow.dashboard._chromium import open_chromium, open_page, path_of_seed

_ROWS = "[role=treeitem]"
_READ_ROW = f"{_ROWS} .text:not(:empty)"
# Sets the scroll position once in each frame and returns the milliseconds between frames and the largest number of rows.
_SCROLL = """async ({steps, pixels}) => {
    const box = document.querySelector("[role=tree]"), space = box.scrollHeight - box.clientHeight;
    const frame = () => new Promise(requestAnimationFrame), took = [];
    let rows = 0, last = await frame();
    for (let step = 0; step < steps; step++) {
        box.scrollTop = pixels === null ? space * ((step * 0.618034) % 1) : (box.scrollTop + pixels) % space;
        const now = await frame();
        took.push(now - last);
        last = now;
        rows = Math.max(rows, box.querySelectorAll("[role=treeitem]").length);
    }
    return {took, rows};
}"""


# Collects the milliseconds between frames until it is stopped.
_COLLECT = """() => {
    const own = (window.frames_ = {took: [], run: true});
    const next = (last) => requestAnimationFrame((now) => (own.took.push(now - last), own.run && next(now)));
    requestAnimationFrame(next);
}"""
_GROWN = 6


class _Scrolled(msgspec.Struct):
    took: list[float]
    rows: int


class FrameTimes(NamedTuple):
    """Times of the page of one tree."""

    opening: float
    """Seconds from the request for the page to the first row with its content."""
    frames: Sequence[float]
    """Milliseconds between frames."""
    rows: int
    """Largest number of rows in the document."""
    growth: Sequence[float]
    """Seconds from the commit of a node to its row."""
    growth_frames: Sequence[float]
    """Milliseconds between frames meanwhile."""


async def measure_frames(file: Path, steps: int = 200) -> FrameTimes:
    """Open the page of the only seed of a journal, let it grow, and scroll it by lines, by pages, and to anywhere.

    :param steps: frames of each way of scrolling.
    """
    with open_runs(file) as runs:
        return await _measure(runs, file, steps)


async def _measure(runs: RunCollection, file: Path, steps: int) -> FrameTimes:
    async with open_chromium() as browser, open_view(runs) as view, open_page(browser, view, "/") as page:
        opening = await _open(page, view.url + path_of_seed(runs))
        await page.evaluate(_COLLECT)
        growth = [await _grow(page, file, number) for number in range(_GROWN)]
        meanwhile = msgspec.convert(await page.evaluate("(frames_.run = false, frames_.took)"), list[float])
        frames: list[float] = []
        most = 0
        for pixels in (60, 2_000, None):
            scrolled = msgspec.convert(
                await page.evaluate(_SCROLL, {"steps": steps, "pixels": pixels}), _Scrolled
            )
            frames += scrolled.took
            most = max(most, scrolled.rows)
            # The rows at which it stopped are read.
            await expect(page.locator(_READ_ROW).first).to_be_attached()
        return FrameTimes(opening, frames, most, growth, meanwhile)


async def _grow(page: Page, file: Path, number: int) -> float:
    """Commit a node below the first leaf, and return the seconds until it has a row."""
    with closing(sqlite3.connect(file, timeout=60)) as journal:
        leaf = journal.execute(
            "SELECT key FROM agentflow_entries WHERE key GLOB 'act/0*' AND key NOT GLOB '*[1-9]*' ORDER BY length(key) DESC"
        ).fetchone()[0]
        child = f"{leaf if number == 0 else leaf.rpartition('-')[0]}-{number}"
        with journal:
            journal.execute(
                "INSERT INTO agentflow_entries SELECT run, seed, ?, 1000000 + ?, body FROM agentflow_entries WHERE key = ?",
                (child, number, leaf),
            )
    committed = time.perf_counter()
    await page.wait_for_selector(f"[data-spot='{child.removeprefix('act/')}']", state="attached")
    return time.perf_counter() - committed


async def _open(page: Page, url: str) -> float:
    """Return the seconds to the first row with its content, by the clock of the page."""
    await page.goto(url, wait_until="commit")
    await page.wait_for_selector(_READ_ROW, state="attached")
    seconds: object = await page.evaluate("performance.now() / 1000")
    assert isinstance(seconds, float)
    return seconds
