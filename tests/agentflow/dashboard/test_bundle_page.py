"""Bundles in a real browser, opened as files: the text of the live view for every kind of run."""

import random
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from agentflow import asynthesize
from agentflow.dashboard import PageData, open_view, write_bundle
from agentflow.inspection import RunCollection, RunReader, open_runs
from tests.agentflow.dashboard._chromium import (
    grown_tree,
    open_chromium,
    open_page,
    path_of_seed,
    serious_findings,
)
from tests.agentflow.dashboard.conftest import WORDS
from tests.agentflow.dashboard.test_bundle import contents
from tests.agentflow.dashboard.test_page import PNG
from tests.agentflow.learner.test_token_page import write_run
from tests.agentflow.rollouts import _rollouts as rollouts

CODE = 150_000
"""Bytes of the page's own files, at most."""
LOADED = re.compile("^(Prompt|No prompt)")


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


async def make_run(kind: str, folder: Path, count: int) -> None:
    """Make a run of some kind with at least the given number of nodes."""
    if kind == "synthesis":
        words = [*WORDS, f"output_dir={folder}", *(["max_depth=5"] if count > 10 else [])]
        seeds = [
            f"Explore the {what}"
            for what in ("ferries", "lighthouses", "Long Frost", "Wrackham", "comets", "guilds")
        ]
        await asynthesize(seeds=seeds[: max(1, count // 8)], overrides=words, progress=False)
    elif kind == "rollout":
        await rollouts.run_to_the_end(rollouts.config_for(folder), rollouts.some_tasks(max(2, count // 2)))
    else:
        write_training(folder, kind)


def write_training(folder: Path, kind: str) -> None:
    """Store a step of a training or tuning."""
    folder.mkdir()
    write_run(folder)
    (folder / "metrics.jsonl").write_text('{"step": 3, "reward": 0.5, "loss": 0.25}\n', encoding="utf-8")
    if kind == "tuning":
        (folder / "gateway").mkdir()


def places_of(run: RunReader, count: int) -> list[str]:
    """Return pages of a run: its lists, and some nodes with a model call each."""
    summary = run.summary()
    tabs = ["seeds", "tools", *(["tasks"] if summary.kind != "synthesis" else [])]
    tabs += ["training"] if summary.steps else []
    places = [f"/r/{run.id}?tab={tab}" for tab in tabs]
    nodes = [(seed.id, spot) for seed in run.seeds() for spot in run.skeleton(seed.id).spots]
    assert len(nodes) >= count
    for seed, spot in random.Random(4).sample(nodes, count):
        places.append(f"/r/{run.id}/s/{quote(seed, safe='')}?spot={spot}")
    first = quote(run.seeds()[0].id, safe="")
    places += [f"/r/{run.id}/s/{first}?tab={tab}" for tab in ("results", "tokens")]
    return places


async def shown_text(page: Page, address: str) -> str:
    """Return the text of a page with everything unfolded."""
    await page.goto("about:blank")
    await page.goto(address)
    panel = page.get_by_role("tabpanel")
    await expect(panel.locator("> *").first).to_be_attached()
    await expect(panel).not_to_contain_text("Loading")
    if address.endswith(("tab=seeds", "tab=tasks")):
        await expect(panel.locator(".rows .row").first).to_be_attached()
    unfold = "(panel) => panel.querySelectorAll('details').forEach((one) => (one.open = true))"
    await panel.evaluate(unfold)
    if await panel.locator("details[data-name='calls']").count():
        await expect(panel.locator("details[data-name='calls'] .body > *").first).to_be_attached()
        await panel.evaluate(unfold)
    calls = panel.locator("details[data-name^='call ']")
    await expect(calls.locator("h2", has_text=LOADED)).to_have_count(await calls.count())
    return await panel.inner_text()


async def texts(page: Page, base: str, places: Sequence[str]) -> dict[str, str]:
    return {place: await shown_text(page, f"{base}{place}") for place in places}


@pytest.mark.promise("view:page:bundle")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("synthesis", 5),
        ("rollout", 3),
        ("training", 3),
        ("tuning", 2),
        pytest.param("synthesis", 50, marks=pytest.mark.soak),
        pytest.param("rollout", 50, marks=pytest.mark.soak),
    ],
)
async def test_a_bundle_opened_as_a_file_shows_the_text_of_the_live_view(
    chromium: Browser, tmp_path: Path, kind: str, count: int
) -> None:
    await make_run(kind, tmp_path / "run", count)
    with open_runs(tmp_path / "run") as runs:
        run = runs.run(runs.runs()[0].id)
        assert run.summary().kind == kind
        places = places_of(run, count)
        bundle = tmp_path / "bundle"
        write_bundle(PageData(runs), bundle)
        write_bundle(PageData(runs), tmp_path / "again")
        assert contents(bundle) == contents(tmp_path / "again")
        async with open_view(runs) as view, open_page(chromium, view, "/") as page:
            live = await texts(page, view.url, places)
    context = await chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page = await context.new_page()
    assert await texts(page, f"{(bundle / 'index.html').as_uri()}#", places) == live
    assert all(len(text) > 10 for text in live.values()), live
    code = [file for name in ("static", "index.html") for file in (bundle / name, *(bundle / name).glob("*"))]
    assert 0 < sum(file.stat().st_size for file in code if file.is_file()) < CODE
    for place in (places[0], places[-3], places[-2]):
        await shown_text(page, f"{(bundle / 'index.html').as_uri()}#{place}")
        assert await serious_findings(page) == [], place
    await context.close()


def only_place(runs: RunCollection) -> str:
    return f"{path_of_seed(runs)}?spot=0"


@pytest.mark.promise("view:page:bundle")
async def test_images_of_a_bundle_are_shown_from_its_files_and_svg_is_not(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    async with grown_tree(folder / "journal.db", "Lighthouses") as tree:
        svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran=1'/>"
        blobs = [
            await tree.run.blobs.put(PNG, "image/png"),
            await tree.run.blobs.put(svg, "image/svg+xml"),
            await tree.run.blobs.put(svg + b" ", "image/png"),
            await tree.run.blobs.put(svg + b"  ", "constructor"),
            await tree.run.blobs.put(svg + b"   ", "../../x.html"),
        ]
        await tree.grow("0", "It is 42 metres high.", blobs=blobs)
    with open_runs(folder) as runs:
        write_bundle(PageData(runs), tmp_path / "bundle")
        place = only_place(runs)
    names = sorted(file.name for file in (tmp_path / "bundle/blobs").iterdir())
    assert names == [f"{blobs[0].hash}.png"]
    context = await chromium.new_context()
    page, asked = await context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{(tmp_path / 'bundle/index.html').as_uri()}#{place}")
    article = page.get_by_role("article", name="Node 0")
    await expect(article).to_contain_text("image/svg+xml")
    await expect(article).to_contain_text("../../x.html")
    image = article.get_by_role("img", name="Image 1 of the observation")
    await expect(image).to_have_js_property("naturalWidth", 1)
    await expect(article.get_by_role("img")).to_have_count(1)
    assert await page.evaluate("window.ran") is None
    assert all(url.startswith((tmp_path / "bundle").as_uri()) for url in asked), asked
    await context.close()
