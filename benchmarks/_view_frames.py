"""Frames of the page of a large tree in a real Chromium, while it is scrolled by a script."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from playwright.async_api import Page, expect

from agentflow.dashboard import open_view
from agentflow.inspection import RunCollection
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


async def scroll_tree(runs: RunCollection, steps: int = 200) -> FrameTimes:
    """Open the page of the only seed, and scroll it by lines, by pages, and to anywhere in the tree.

    :param steps: frames of each way of scrolling.
    """
    async with open_chromium() as browser, open_view(runs) as view, open_page(browser, view, "/") as page:
        opening = await _open(page, view.url + path_of_seed(runs))
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
        return FrameTimes(opening, frames, most)


async def _open(page: Page, url: str) -> float:
    """Return the seconds to the first row with its content, by the clock of the page."""
    await page.goto(url, wait_until="commit")
    await page.wait_for_selector(_READ_ROW, state="attached")
    seconds: object = await page.evaluate("performance.now() / 1000")
    assert isinstance(seconds, float)
    return seconds
