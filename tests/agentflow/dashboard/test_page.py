"""The page in a real browser: live, with hostile data, by keyboard, on any screen."""

import json
from base64 import b64decode
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from agentflow.cli import main
from agentflow.dashboard import open_view
from agentflow.inspection import open_runs
from agentflow.journal import this_process
from agentflow.trace import Failure, Verdict
from tests.agentflow.dashboard._chromium import (
    FIRST,
    GrownTree,
    grown_tree,
    open_chromium,
    open_page,
    path_of_seed,
    serious_findings,
)

PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = (
    "<script>window.ran = 1; alert(1)</script><img src=http://evil.example/x onerror='window.ran = 1'>",
    "<svg onload='window.ran = 1'><a href='javascript:window.ran=1'>here</a></svg> javascript:alert(1)",
    "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x00 \u202eesrever\u202c \u2066x\u2069",
    "wide" * 500_000,
)
BODY = "document.querySelector('.view').scrollWidth - document.querySelector('.view').clientWidth"
PAGE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


async def grow_some(tree: GrownTree) -> None:
    """Grow six nodes on three levels: one failed, one with an image."""
    picture = await tree.run.blobs.put(PNG, "image/png")
    await tree.grow("0", "The light was first lit in 1834.")
    await tree.grow("1", "It is 42 metres high.", blobs=[picture])
    await tree.grow("2", failure=Failure("timeout", "The page did not answer."))
    await tree.judge(1, {"2": (Verdict.ERROR, "timeout")})
    await tree.grow("0-0", "Keepers: R. Muir, J. Tait.")
    await tree.grow("0-1", "Nothing new.")
    await tree.grow("0-0-0", "R. Muir kept it for seven years.")


async def selected(page: Page) -> str:
    """Return the spot of the selected row."""
    return await page.locator("[role=treeitem][aria-selected=true]").get_attribute("data-spot") or ""


@pytest.mark.promise("view:page:live")
async def test_a_new_node_appears_without_a_reload_and_the_reader_keeps_the_place(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", "Lighthouses") as tree:
        await grow_some(tree)
        await tree.grow("0-2", "\n".join(f"line {number}" for number in range(400)))
        with open_runs(tmp_path / "journal.db") as runs:
            async with (
                open_view(runs) as view,
                open_page(chromium, view, f"{path_of_seed(runs)}?spot=0-2") as page,
            ):
                await expect(page.get_by_role("article", name="Node 0-2")).to_contain_text("line 399")
                await page.evaluate("window.kept = true; document.querySelector('.view').scrollTop = 300")
                await tree.grow("0-3", "A fourth page.", intent="Look once more")
                await expect(page.get_by_role("treeitem").filter(has_text="Look once more")).to_be_visible()
                await expect(page.get_by_role("group", name="Siblings")).to_contain_text("Look once more")
                assert await page.evaluate("[window.kept, document.querySelector('.view').scrollTop]") == [
                    True,
                    300,
                ]
                assert await selected(page) == "0-2"


@pytest.mark.promise("view:page:live")
async def test_a_run_whose_process_was_killed_is_stopped_on_the_open_page(
    chromium: Browser, tmp_path: Path
) -> None:
    gone = this_process().rpartition(":")[0] + ":1"
    async with grown_tree(tmp_path / "journal.db", "Lighthouses") as tree:
        await tree.grow("0", "It is lit.")
        with open_runs(tmp_path / "journal.db") as runs:
            path = f"/r/{runs.runs()[0].id}"
            async with open_view(runs) as view, open_page(chromium, view, path) as page:
                await expect(page.locator(".head .chip.running")).to_be_visible()
                await expect(page.locator(".live[data-state=live]")).to_be_visible()
                await tree.run.release(this_process())
                await tree.run.claim(gone, 1)
                await expect(page.locator(".head .chip.stopped")).to_be_visible()
                await expect(page.get_by_role("link", name="seed_001")).to_be_visible()
                await expect(page.locator(".chip.running")).to_have_count(0)


@pytest.mark.promise("view:page:hostile")
async def test_hostile_observations_are_text_that_makes_no_request_and_keeps_the_layout(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", HOSTILE[2]) as tree:
        svg = await tree.run.blobs.put(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")
        await tree.grow("0", *HOSTILE, blobs=[svg], intent=HOSTILE[0])
        with open_runs(tmp_path / "journal.db") as runs:
            async with (
                open_view(runs) as view,
                open_page(chromium, view, f"{path_of_seed(runs)}?spot=0", width=1000) as page,
            ):
                asked: list[str] = []
                page.on("request", lambda request: asked.append(request.url))
                page.on("dialog", lambda dialog: asked.append(f"dialog {dialog.message}"))
                article = page.get_by_role("article", name="Node 0")
                await expect(article).to_contain_text(HOSTILE[0])
                await expect(article).to_contain_text("javascript:alert(1)")
                await expect(article).to_contain_text("^[[31mred^[[0m")
                await expect(article).to_contain_text("^@ ‹U+202E›esrever‹U+202C›")
                await expect(article).to_contain_text("image/svg+xml")
                await page.get_by_role("button", name="more").first.click()
                for summary in await article.locator("details:not([open]) > summary").all():
                    await summary.click()
                await page.keyboard.press("r")
                await page.keyboard.press("t")
                await (
                    page.get_by_role("button", name="Keys")
                    .or_(page.get_by_role("button", name="keys"))
                    .click()
                )
                foreign = [url for url in asked if not url.startswith(view.url)]
                assert foreign == []
                assert await page.evaluate("[window.ran, document.images.length]") == [None, 0]
                assert await page.locator("a[href^='javascript:'], main script, main svg").count() == 0
                assert await page.evaluate(f"[{PAGE}, {BODY}]") == [0, 0]


@pytest.mark.promise("view:page:keys")
@pytest.mark.parametrize("count", [3, pytest.param(7, marks=pytest.mark.soak)])
async def test_every_node_can_be_reached_by_keyboard_and_a_bundle_shows_the_same_text(
    chromium: Browser, tmp_path: Path, count: int
) -> None:
    some = range(count)
    spots = ["", *map(str, some), *(f"{first}-{second}" for first in some for second in some)]
    file = tmp_path / "run" / "journal.db"
    file.parent.mkdir()
    async with grown_tree(file, "Lighthouses") as tree:
        for spot in spots[1:]:
            await tree.grow(spot, f"Text of node {spot} with 😀 and \u202e.")
    assert main(["bundle", str(file.parent), "-o", str(tmp_path / "bundle")]) == 0

    async def read_all(page: Page) -> dict[str, str]:
        texts: dict[str, str] = {}
        await expect(page.locator(FIRST)).to_be_visible()
        for _ in spots:
            spot = await selected(page)
            article = page.locator(f"article[aria-label='{f'Node {spot}' if spot else 'Seed'}']")
            await expect(article).to_be_visible()
            texts[spot] = await article.inner_text()
            await page.keyboard.press("ArrowDown")
        return texts

    with open_runs(file.parent) as runs:
        path = path_of_seed(runs)
        async with open_view(runs) as view, open_page(chromium, view, path) as page:
            live = await read_all(page)
            assert sorted(live) == sorted(spots)
            for keys, spot in (
                ("g l", "0"),
                ("j j", "2"),
                ("l k", "2-0"),
                ("h k", "1"),
                ("Home End", spots[-1]),
            ):
                for key in keys.split():
                    await page.keyboard.press(key)
                assert await selected(page) == spot, keys
            await page.keyboard.press("t")
            await expect(page.get_by_role("tab", name="Tokens")).to_have_attribute("aria-selected", "true")
            await page.keyboard.press("?")
            await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
            await page.keyboard.press("Escape")
            await page.keyboard.press("/")
            await page.keyboard.type("node 1-2")
            await page.get_by_role("link").filter(has_text="observation").first.click()
            await expect(page.get_by_role("article", name="Node 1-2")).to_be_visible()
    context = await chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page = await context.new_page()
    await page.goto(f"{(tmp_path / 'bundle/index.html').as_uri()}#{path}")
    assert await read_all(page) == live
    await context.close()


@pytest.mark.promise("view:page:large")
async def test_a_tree_of_100000_nodes_has_few_rows_in_the_document(chromium: Browser, tmp_path: Path) -> None:
    spots, marks = [""], "n" * 100_001
    for parent in spots:
        spots += [f"{parent}-{position}".removeprefix("-") for position in range(3)]
        if len(spots) > 100_000:
            break
    skeleton = {"seed": "seed_001", "state": "done", "spots": spots[:100_001], "marks": marks, "planned": []}

    async def answer(route: Route) -> None:
        await route.fulfill(json=skeleton)

    async with grown_tree(tmp_path / "journal.db", "Lighthouses"):
        with open_runs(tmp_path / "journal.db") as runs:
            async with open_view(runs) as view, open_page(chromium, view, "/") as page:
                await page.route("**/skeleton", answer)
                await page.goto(view.url + path_of_seed(runs))
                await expect(page.get_by_text("100,000 nodes")).to_be_visible()
                rows = page.get_by_role("treeitem")
                for keys in ("Home", "PageDown", "End", "ArrowUp"):
                    await page.keyboard.press(keys)
                    assert 0 < await rows.count() <= 300
                last = page.locator(f"[data-spot='{await selected(page)}']")
                await page.evaluate("document.querySelector('[role=tree]').scrollTop = 1e6")
                await expect(last).to_have_count(0)
                assert 0 < await rows.count() <= 300


@pytest.mark.promise("view:page:screens")
async def test_pages_fit_any_screen_and_axe_core_finds_nothing_serious(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", "Lighthouses") as tree:
        await grow_some(tree)
        with open_runs(tmp_path / "journal.db") as runs:
            seed = path_of_seed(runs)
            places = (f"{seed}?spot=1", seed.partition("/s/")[0], "/", f"{seed}?tab=results")
            async with open_view(runs) as view:
                for width, dark in ((375, True), (3840, False)):
                    async with open_page(chromium, view, "/", width=width, height=900, dark=dark) as page:
                        for place in places:
                            await page.goto(view.url + place)
                            await expect(page.locator("main h1, main article").first).to_be_attached()
                            await expect(
                                page.locator("[role=listitem], article, .pair, .none").first
                            ).to_be_attached()
                            assert await page.evaluate(PAGE) == 0, (place, width)
                            assert await serious_findings(page) == [], (place, width)


@pytest.mark.promise("view:page:compare")
async def test_the_paired_test_of_two_runs_is_the_exact_permutation_test(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", "Lighthouses"):
        with open_runs(tmp_path / "journal.db") as runs:
            async with open_view(runs) as view, open_page(chromium, view, "/") as page:
                cases: tuple[tuple[list[float], float], ...] = (
                    ([1, 1, 1, 1, 1], 2 / 32),
                    ([0, 0, 0], 1.0),
                    ([1, -1, 1, 0], 1.0),
                    ([0.5, 0.25, 0.75], 2 / 8),
                )
                for differences, p in cases:
                    assert await page.evaluate(f"agentflow.pairedTest({json.dumps(differences)})") == p
                many = await page.evaluate(
                    "agentflow.pairedTest(Array.from({length: 40}, (_, at) => at % 4 ? 1 : -1))"
                )
                assert 0.001 < many < 0.004
