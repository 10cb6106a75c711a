"""Observations of tens of megabytes: their beginning, the rest on request, and bounded memory."""

import hashlib
import json
import re
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from agentflow.cli import main
from agentflow.dashboard import api_path, open_view
from agentflow.inspection import open_runs
from tests.agentflow.cli._programs import running
from tests.agentflow.dashboard._access import opener_of
from tests.agentflow.dashboard._chromium import grown_tree, open_chromium, open_page, path_of_seed

CHARS = 50_000_000
LINE = f"begin {'w' * 99_992}{' wide' * 9_979_999} ended."
"""A line of 50 MB."""
PAGE = "document.documentElement.scrollWidth - innerWidth"
VIEW = "document.querySelector('.view').scrollWidth - document.querySelector('.view').clientWidth"


def digest(text: str) -> str:
    """Return a digest, whose difference a failed test can show."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
async def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with one line of 50 MB."""
    folder = tmp_path_factory.mktemp("long") / "run"
    folder.mkdir()
    async with grown_tree(folder / "journal.db", "Lighthouses") as tree:
        await tree.grow("0", LINE)
    return folder


@pytest.mark.promise("view:page:long")
async def test_a_line_of_50_mb_begins_on_the_page_and_its_rest_is_loaded_or_saved_on_request(
    chromium: Browser, long_run: Path, tmp_path: Path
) -> None:
    with open_runs(long_run) as runs:
        async with (
            open_view(runs) as view,
            open_page(chromium, view, f"{path_of_seed(runs)}?spot=0", width=375) as page,
        ):
            block = page.locator("details[data-name=Observation]")
            bar = block.locator(".bar")
            await expect(bar).to_contain_text("20,000 of 50,000,000 characters")
            for shown in (120_000, 240_000, *range(440_000, 1_000_000, 200_000), 1_000_000, 1_200_000):
                await bar.get_by_role("button", name="more").click()
                await expect(bar).to_contain_text(f"{shown:,} of 50,000,000 characters")
            text = await block.locator("pre").text_content() or ""
            assert digest(text) == digest(LINE[:1_200_000])
            assert await page.evaluate(f"[{PAGE}, {VIEW}]") == [0, 0]
            async with page.expect_download() as download:
                await block.get_by_role("button", name="Save all").click()
            saved = await (await download.value).path()
            assert digest(saved.read_text(encoding="utf-8")) == digest(LINE)
    assert main(["bundle", str(long_run), "-o", str(tmp_path / "bundle")]) == 0
    context = await chromium.new_context()
    page = await context.new_page()
    await page.goto(f"{(tmp_path / 'bundle/index.html').as_uri()}#{path_of_seed(runs)}?spot=0")
    bar = page.locator("details[data-name=Observation] .bar")
    await expect(bar).to_contain_text("20,000 of 50,000,000 characters")
    last = api_path(
        "r", runs.runs()[0].id, "s", "seed_001", "text", spot="0", part="0", **{"from": "49000000"}
    )
    loaded = await page.evaluate(f"agentflow.load({json.dumps(last)}).then((found) => found.text)")
    assert digest(loaded) == digest(LINE[49_000_000:])
    await context.close()


@pytest.mark.promise("view:page:long")
def test_the_memory_of_the_viewer_is_bounded_while_texts_of_50_mb_are_read_and_searched(
    long_run: Path,
) -> None:
    with running("agentflow.cli", "view", str(long_run), "--no-open", "--json", cwd=long_run) as viewer:
        assert viewer.stdout is not None
        told = json.loads(viewer.stdout.readline())
        opener = opener_of(told["link"])

        def load(path: str) -> bytes:
            with opener.open(f"{told['url']}/api/{path}") as answer:
                body: bytes = answer.read()
            return body

        def peak() -> int:
            status = Path(f"/proc/{viewer.pid}/status").read_text(encoding="ascii")
            return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) << 10

        before = peak()
        run = json.loads(load("runs"))[0]["id"]
        of_seed = f"r/{run}/s/seed_001"
        for _ in range(3):
            node = load(f"{of_seed}/node?spot=0")
            assert len(json.loads(node)["parts"][0]["text"]) == 1_000_000
            assert json.loads(node)["parts"][0]["chars"] == CHARS
            assert len(load(f"{of_seed}/text?spot=0&part=0&from=1000000")) < 1_100_000
            (hit,) = json.loads(load(f"r/{run}/search?text=ended"))
            assert hit["excerpt"].startswith("…") and "ended" in hit["excerpt"]
        # SQLite makes several copies of a body that it searches; all are free afterwards.
        assert peak() - before < 8 * CHARS
        viewer.send_signal(signal.SIGINT)
        viewer.wait()


@pytest.mark.promise("view:page:long")
async def test_a_stretch_of_a_text_is_asked_for_by_place_and_a_wrong_place_is_one_line(
    long_run: Path,
) -> None:
    from tests.agentflow.dashboard.conftest import browser

    with open_runs(long_run) as runs:
        of_seed = f"r/{runs.runs()[0].id}/s/seed_001"
        async with browser(runs) as (_, client):
            async with client.get(f"/api/{of_seed}/whole?spot=&part=0") as answer:
                assert await answer.text() == "Lighthouses"
                assert answer.headers["Content-Disposition"] == "attachment"
                assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            async with client.get(f"/api/{of_seed}/text?spot=0&part=0&from=49999995") as answer:
                assert await answer.json() == {"text": "nded.", "chars": CHARS}
            for place, status in {
                "text?spot=0&part=1": 404,
                "text?spot=9&part=0": 404,
                "text?spot=0&part=-1": 400,
                "text?spot=0&part=0&from=x": 400,
                "whole?spot=0&part=99999999999999999999": 400,
                "whole?spot=../0&part=0": 404,
            }.items():
                async with client.get(f"/api/{of_seed}/{place}") as answer:
                    assert answer.status == status, place
                    assert "\n" not in (await answer.json())["error"]
