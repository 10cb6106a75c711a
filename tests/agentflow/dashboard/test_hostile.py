"""Runs with hostile text in every record: on the page, in bundles, reports and notebooks."""

import json
import os
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, expect

from agentflow.cli import main
from agentflow.dashboard import PageData, api_path, open_view, write_report
from agentflow.inspection import RunKind, open_runs
from tests.agentflow.dashboard._chromium import grown_tree, open_chromium, path_of_seed
from tests.agentflow.dashboard._poison import HOSTILE, poison_run
from tests.agentflow.dashboard.test_bundle import bundled
from tests.agentflow.dashboard.test_places import answers
from tests.agentflow.rollouts import _rollouts as rollouts

FOUND = """[
    window.ran ?? null,
    document.images.length,
    document.querySelectorAll('x-evil, iframe, form, object, embed, base, body style, meta[http-equiv=refresh]').length,
    document.querySelectorAll('[onload], [onerror], [onclick], [srcdoc], [srcset]').length,
    [...document.scripts].filter((script) => !script.src || new URL(script.src).origin !== location.origin).length,
    [...document.links].filter((link) => new URL(link.href).origin !== location.origin).length,
    document.documentElement.scrollWidth - innerWidth,
]"""
"""Signs of hostile text that is more than text, and of a broken layout."""
CLEAN = [None, 0, 0, 0, 0, 0, 0]


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def sources(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a synthesis and a rollout."""
    folder = tmp_path_factory.mktemp("rollout") / "run"
    # A test of this thread may have an event loop.
    with ThreadPoolExecutor(1) as thread:
        run = partial(anyio.run, rollouts.run_to_the_end)
        thread.submit(run, rollouts.config_for(folder), rollouts.some_tasks(2)).result()
    return {"synthesis": finished, "rollout": folder}


@pytest.fixture(scope="module")
def poisoned(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both runs, whose every text is hostile."""
    place = tmp_path_factory.mktemp("poisoned")
    for kind, folder in sources.items():
        poison_run(folder, place / f"{kind} <x-evil>", HOSTILE)
    return place


def notebook_cards(folders: list[Path]) -> Iterator[str]:
    """Yield all that readers of the runs show in notebooks."""
    for folder in folders:
        with open_runs(folder) as runs:
            for shown in (runs, runs.run(runs.runs()[0].id)):
                yield getattr(shown, "_repr_html_")()  # noqa: B009 - the protocol of notebooks


@asynccontextmanager
async def watched_page(chromium: Browser) -> AsyncGenerator[tuple[Page, list[str]]]:
    """Yield a page, and what it did beyond showing text."""
    context = await chromium.new_context(viewport={"width": 1000, "height": 800})
    page, done = await context.new_page(), list[str]()
    page.on("request", lambda request: done.append(request.url))
    page.on("dialog", lambda dialog: done.append(f"dialog {dialog.message}"))
    page.on("popup", lambda popup: done.append(f"popup {popup.url}"))
    page.on("pageerror", lambda error: done.append(f"error {error}"))
    yield page, done
    await context.close()


@pytest.mark.promise("view:page:hostile")
@settings(max_examples=15, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), both=st.booleans())
def test_the_interface_answers_with_the_texts_of_the_journal_whatever_they_are(
    sources: dict[str, Path], text: str, both: bool
) -> None:
    kind = "rollout" if both else "synthesis"
    with TemporaryDirectory() as place:
        folder = poison_run(sources[kind], Path(place) / "run", text)
        with open_runs(folder) as runs:
            assert runs.runs()[0].kind == kind
            found = dict(answers(runs))
            [seed, *_] = [answer for answer in found.values() if "index" in answer]
            node = found["0"]
            assert text in (node["intent"], node["parts"][0]["text"])
            assert node["arguments"]["__proto__"] == {"a": text}
            assert node["arguments"]["whole"] == str(2**70)
            assert seed["failure"] is not None
            write_report(folder)


@pytest.mark.promise("view:page:hostile")
async def test_hostile_text_in_any_record_is_only_text_on_every_page(
    chromium: Browser, poisoned: Path
) -> None:
    with open_runs(poisoned) as runs:
        ids = {summary.kind: summary.id for summary in runs.runs()}
        async with open_view(runs) as view, watched_page(chromium) as (page, done):
            # A stream is never idle.
            await page.route("**/events*", lambda route: route.abort())
            await page.goto(view.link())
            await expect(page.get_by_role("table", name="Runs")).to_contain_text("x-evil")
            assert await page.evaluate(FOUND) == CLEAN
            places = [f"/compare?a={ids[RunKind.ROLLOUT]}&b={ids[RunKind.ROLLOUT]}"]
            for kind, run in ids.items():
                tabs = ["seeds", "tools", "settings", "status", *(["tasks"] if kind == "rollout" else [])]
                places += [f"/r/{run}?tab={tab}" for tab in tabs]
                seed = runs.run(run).seeds()[0].id
                places += [f"/r/{run}/s/{seed}?tab={tab}" for tab in ("results", "tokens")]
                call = runs.run(run).node(seed, "0").calls[0].key
                places += [f"/r/{run}/s/{seed}?spot=0&call={call}", f"/r/{run}/s/{seed}?spot="]
            for place in places:
                await page.goto(view.url + place)
                await expect(page.locator("main > div > *").first).to_be_attached()
                await page.wait_for_load_state("networkidle")
                if "spot=0" in place:
                    article = page.get_by_role("article", name="Node 0")
                    await expect(article).to_contain_text("<x-evil>")
                    await expect(article).to_contain_text("^[[31mred^[]8;;http://evil.example^G ^@")
                    await expect(article).to_contain_text("‹U+202E›esrever")
                    await expect(article).to_contain_text("__proto__")
                assert await page.evaluate(FOUND) == CLEAN, place
            await page.keyboard.press("/")
            await page.keyboard.type("x-evil")
            await expect(page.get_by_role("link").filter(has_text="x-evil").first).to_be_visible()
            assert await page.evaluate(FOUND) == CLEAN
            assert [each for each in done if not each.startswith(f"{view.url}/")] == []


@pytest.mark.promise("view:page:hostile")
async def test_arguments_of_any_depth_and_width_are_shown_and_bundled(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    deep: object = 2**70
    for _ in range(800):
        deep = [deep]
    async with grown_tree(folder / "journal.db", "Lighthouses") as tree:
        await tree.grow("0", "Seen", arguments={"deep": deep, "wide": list(range(300_000))})
    assert main(["bundle", str(folder), "-o", str(tmp_path / "bundle")]) == 0
    with open_runs(folder) as runs:
        place = f"{path_of_seed(runs)}?spot=0"
        async with open_view(runs) as view, watched_page(chromium) as (page, done):
            await page.goto(view.link(place))
            for address in (view.url + place, f"{(tmp_path / 'bundle/index.html').as_uri()}#{place}"):
                await page.goto("about:blank")
                await page.goto(address)
                article = page.get_by_role("article", name="Node 0")
                await expect(article).to_contain_text("20,000 of")
                assert await page.evaluate(FOUND) == CLEAN
            assert [each for each in done if each.startswith(("dialog", "popup", "error"))] == []


@pytest.mark.promise("view:page:hostile")
@pytest.mark.promise("view:bundle")
async def test_hostile_text_is_only_text_in_a_bundle_and_none_of_it_is_lost(
    chromium: Browser, poisoned: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    assert main(["bundle", str(poisoned), "-o", str(bundle)]) == 0
    kept = bundled(bundle)
    with open_runs(poisoned) as runs:
        data = PageData(runs)
        ids = [summary.id for summary in runs.runs()]
        seeds = {run: runs.run(run).seeds()[0].id for run in ids}
        async with watched_page(chromium) as (page, done):
            for run, seed in seeds.items():
                path = api_path("r", run, "s", seed, "node", spot="0")
                live = json.loads(data.load(path))
                await page.goto(f"{(bundle / 'index.html').as_uri()}#/r/{run}/s/{seed}?spot=0")
                await page.reload()
                await expect(page.get_by_role("article", name="Node 0")).to_contain_text("<x-evil>")
                assert await page.evaluate(FOUND) == CLEAN
                shown = await page.evaluate(f"agentflow.load({json.dumps(path)}).then(JSON.stringify)")
                assert json.loads(shown) == kept[path] == live
                assert "__proto__" in json.loads(shown)["arguments"]
            assert [each for each in done if not each.startswith(f"{bundle.as_uri()}/")] == []


@pytest.mark.promise("view:page:hostile")
@pytest.mark.promise("view:report")
async def test_hostile_text_is_only_text_in_reports_and_notebooks(chromium: Browser, poisoned: Path) -> None:
    folders = [poisoned / name for name in os.listdir(poisoned)]
    async with watched_page(chromium) as (page, done):
        for folder in folders:
            await page.goto(write_report(folder).as_uri())
            await expect(page.locator("body")).to_contain_text("<x-evil>")
            assert await page.evaluate(FOUND) == CLEAN
            assert await page.evaluate("[document.scripts.length, document.links.length]") == [0, 0]
        assert [each for each in done if not each.startswith(f"{poisoned.as_uri()}/")] == []
        done.clear()
        await page.set_content("\n".join(notebook_cards(folders)))
        await expect(page.locator("body")).to_contain_text("<x-evil>")
        assert await page.evaluate(FOUND) == CLEAN
        assert await page.evaluate("[document.scripts.length, document.links.length]") == [0, 0]
        assert done == []
