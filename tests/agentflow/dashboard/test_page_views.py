"""Views of the page in a real browser: tokens, two runs, curves, actors, exports, search, filters, keys, links."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio.to_thread
import pytest
from playwright.async_api import Browser, Page, expect

from agentflow import rollout
from agentflow.dashboard import PageData, open_view, write_bundle
from agentflow.gateway import EpisodeOutcome, GatewayCall, GatewaySettings, recorded_calls
from agentflow.inspection import RunCollection, open_runs
from agentflow.learner import Batch, Group
from agentflow.learner._checkpoints import RolloutStore
from agentflow.models import ImagePart, Message, TextPart
from agentflow.runs import CONTROL_FILE
from agentflow.trace import Blob, Task, Verdict
from agentflow.tuner._gateway_rollout import episode_samples
from tests.agentflow.cli._programs import running
from tests.agentflow.dashboard._chromium import (
    grown_tree,
    open_chromium,
    open_page,
    path_of_seed,
    serious_findings,
)
from tests.agentflow.gateway._images import image
from tests.agentflow.gateway._registry import OWNER, ask, offers, registry_at
from tests.agentflow.learner.test_token_page import write_run
from tests.system._supervised import endpoint, wait_for

QUESTIONS = {
    "When was Needle Light built?": "1834",
    "Who was the designer of Needle Light?": "Theda Marrow",
    "Who discovered the Lantern Comet?": "Maeve Calloran",
    "When was the Lantern Feast first held?": "1707",
}
DRAWN = "main [role=row], main [role=listitem], main article, main .pair, main .tokens, main .chart, main details, main dd"
"""Parts of pages that are there once a page is drawn."""
BROKEN_ROWS = (
    "[...document.querySelectorAll('.row')].filter(row => row.scrollHeight > row.clientHeight + 1).length"
)
"""Number of rows of tables whose cells do not fit into one line."""


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training with one stored step and the figures of two."""
    folder = write_run(tmp_path_factory.mktemp("views") / "training")
    figures = (
        {"step": 1, "reward/mean": 0.25, "clip/high": 0, "loss": None},
        {"step": 2, "reward/mean": 0.75, "clip/high": 0, "loss": 0.5},
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in figures), "utf-8")
    return folder


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two rollouts of the same tasks: `shallow` does not look anything up."""
    folder = tmp_path_factory.mktemp("views") / "rollouts"
    tasks = [
        Task(index=at, id=f"q{at}", question=question, references=(answer,))
        for at, (question, answer) in enumerate(QUESTIONS.items())
    ]
    for name, tools in (("deep", "[rag_search]"), ("shallow", "[code_run]")):
        words = ["max_turns=3", "samples=2", f"available_tools={tools}", f"output_dir={folder / name}"]
        rollout(data_path=tasks, evaluate=True, overrides=words)
    return folder


def ids(runs: RunCollection) -> dict[str, str]:
    """Return the ids of runs by their names."""
    return {summary.name: summary.id for summary in runs.runs()}


async def figures_of(page: Page) -> dict[str, str]:
    """Return the figures at the head of a page by their names."""
    names = await page.locator(".figures dt").all_inner_texts()
    return dict(zip(names, await page.locator(".figures dd").all_inner_texts(), strict=True))


@pytest.mark.promise("view:page:tokens")
async def test_each_sampled_token_shows_its_log_probability_version_and_advantage(
    chromium: Browser, training: Path
) -> None:
    with open_runs(training) as runs:
        reader = runs.run(ids(runs)["training"])
        seed = next(each for each in reader.seeds() if each.score == -1.0)
        pieces = [piece for row in reader.tokens(seed.id) for piece in row.pieces if piece.kind == "trained"]
        path = f"/r/{reader.id}/s/{quote(seed.id, safe='')}?tab=tokens"
        async with open_view(runs) as view, open_page(chromium, view, path) as page:
            tokens = page.locator(".tokens .worse, .tokens .trained")
            await expect(tokens).to_have_count(sum(len(piece.ids) for piece in pieces))
            await tokens.nth(1).hover()
            status = page.locator(".view [role=status]")
            first = pieces[0]
            assert first.advantage is not None
            for words in (
                f"token {first.ids[1]}",
                f"log-probability {first.logprobs[1]:.3f}",
                f"advantage {first.advantage:+.3f}".replace("-", "\u2212"),
                f"version {first.version}",
                "call 1",
            ):
                await expect(status).to_contain_text(words)
            # A later version of the weights begins with a line.
            await expect(page.locator(".tokens .edge").first).to_be_attached()
            await page.locator(".tokens").first.focus()
            await page.keyboard.press("ArrowRight")
            await expect(status).to_contain_text("1 token · context")


@pytest.mark.promise("view:page:compare")
async def test_two_runs_are_chosen_and_compared_by_task(chromium: Browser, rollouts: Path) -> None:
    with open_runs(rollouts) as runs:
        async with open_view(runs) as view, open_page(chromium, view, "/") as page:
            compare = page.get_by_role("button", name="Compare")
            await expect(compare).to_be_disabled()
            for name in ("shallow", "deep"):
                await page.get_by_role("checkbox", name=f"Choose {name} to compare").check()
            await compare.click()
            await expect(page.get_by_role("heading", level=1)).to_have_text("A shallow and B deep")
            found = await figures_of(page)
            assert (found["tasks in both"], found["mean of A"], found["mean of B"]) == ("4", "0", "1")
            # Of the 16 ways to flip four equal differences, two are as extreme.
            assert found["p-value, paired permutation test"] == "0.125"
            assert (found["B better"], found["B worse"]) == ("4", "0")
            await expect(page.get_by_text("No clear difference")).to_be_visible()
            rows = page.get_by_role("table", name="Tasks").get_by_role("row")
            await expect(rows).to_have_count(5)
            await expect(rows.filter(has_text="Needle Light built")).to_contain_text("1834 ×2")
            await page.get_by_role("searchbox", name="Filter tasks").fill("comet")
            await expect(rows).to_have_count(2)
            await page.get_by_label("Order").select_option("name")
            await page.reload()
            await expect(rows).to_have_count(2)
            await expect(page.get_by_label("Order")).to_have_value("name")
            await page.get_by_role("button", name="Swap").click()
            await expect(page.get_by_role("heading", level=1)).to_have_text("A deep and B shallow")
            await page.get_by_role("link", name="deep").click()
            await page.get_by_role("tab", name="By task").click()
            table = page.get_by_role("table", name="Scores by task")
            await expect(table.get_by_role("row")).to_have_count(5)
            await table.get_by_role("link", name="1").first.click()
            await expect(page.get_by_role("article", name="Task")).to_be_visible()


@pytest.mark.promise("view:page:screens")
async def test_rollouts_trainings_and_comparisons_fit_any_screen_and_axe_core_finds_nothing_serious(
    chromium: Browser, rollouts: Path, training: Path
) -> None:
    with open_runs(rollouts) as runs:
        first, second = ids(runs).values()
        places = (
            "/",
            f"/compare?a={first}&b={second}",
            *(f"/r/{first}?tab={tab}" for tab in ("seeds", "tasks", "tools", "settings")),
            f"/r/{first}/s/q0%231?spot=0",
        )
        await check_places(chromium, runs, places)
    with open_runs(training) as runs:
        (run,) = ids(runs).values()
        seed = quote(runs.run(run).seeds()[0].id, safe="")
        places = (
            *(f"/r/{run}?tab={tab}" for tab in ("training", "seeds")),
            *(f"/r/{run}/s/{seed}?spot=0&tab={tab}" for tab in ("", "tokens", "results")),
        )
        await check_places(chromium, runs, places)


async def check_places(chromium: Browser, runs: RunCollection, places: Sequence[str]) -> None:
    """Check the layout and the accessibility of places on narrow dark and wide light screens."""
    async with open_view(runs) as view:
        for width, dark in ((375, True), (3840, False)):
            async with open_page(chromium, view, "/", width=width, height=900, dark=dark) as page:
                for place in places:
                    await page.goto(view.url + place)
                    await expect(page.locator(DRAWN).first).to_be_attached()
                    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0, (
                        place
                    )
                    assert await page.evaluate(BROKEN_ROWS) == 0, (place, width)
                    assert await serious_findings(page) == [], (place, width)


@pytest.mark.promise("view:page:training")
async def test_curves_of_a_training_show_all_runs_at_one_step(chromium: Browser, training: Path) -> None:
    with open_runs(training) as runs:
        async with open_view(runs) as view, open_page(chromium, view, "/") as page:
            charts = page.locator("figure.chart")
            await expect(charts).to_have_count(3)
            titles = await charts.locator("figcaption span:first-child").all_inner_texts()
            # Rewards come first, and figures that never change last.
            assert titles == ["reward/mean", "loss", "clip/high"]
            reward = page.get_by_role("img", name="reward/mean: last 0.75, from 0.25 to 0.75", exact=True)
            box = await reward.bounding_box()
            assert box is not None
            await reward.hover(position={"x": box["width"] * 0.15, "y": box["height"] / 2})
            await expect(charts.first.locator("figcaption")).to_contain_text("step 1: 0.25")
            await page.get_by_role("searchbox", name="Filter figures").fill("LOSS")
            await expect(charts).to_have_count(1)
            with (training / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": 3, "loss": 0.125}) + "\n")
            await expect(charts.first).to_contain_text("0.125")


@pytest.mark.promise("view:page:actors")
async def test_actors_and_calls_in_flight_of_a_run_are_shown_while_it_is_active(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    small = ("max_depth=2", "depth_threshold=1", "number_of_seed=1", f"output_dir={folder}")
    with (
        endpoint(hold_after=3) as at,
        running("agentflow.supervisor", *at.words, *small, cwd=tmp_path) as process,
    ):
        await anyio.to_thread.run_sync(partial(at.wait_for, calls=4))
        await anyio.to_thread.run_sync(wait_for, (folder / CONTROL_FILE).exists)
        with open_runs(folder) as runs:
            async with (
                open_view(runs) as view,
                open_page(chromium, view, f"/r/{ids(runs)['out']}?tab=status") as page,
            ):
                await expect(page.locator(".live")).to_have_attribute("data-state", "live")
                actors = page.get_by_role("table", name="Actors").get_by_role("row")
                await expect(actors.first).to_have_text("IdKindState")
                await expect(actors.filter(has_text="running").first).to_be_visible()
                calls = page.get_by_role("table", name="Model calls").get_by_role("row")
                await expect(calls.nth(1).get_by_role("cell").nth(1)).to_have_text(re.compile(r"^[1-9]"))
                process.kill()
                await expect(page.get_by_text("can't be asked")).to_be_visible()


@pytest.mark.promise("view:page:export")
async def test_the_page_exports_a_run_and_says_where(chromium: Browser, rollouts: Path) -> None:
    with open_runs(rollouts) as runs:
        async with (
            open_view(runs) as view,
            open_page(chromium, view, f"/r/{ids(runs)['deep']}") as page,
        ):
            await page.get_by_role("button", name="Export").click()
            dialog = page.get_by_role("dialog", name="Export")
            await dialog.get_by_label("Format").select_option("trl-sft")
            await dialog.get_by_role("button", name="Export").click()
            folder = rollouts / "deep/exports/trl-sft"
            await expect(dialog.get_by_role("status")).to_have_text(f"Written to {folder}")
            assert json.loads((folder / "manifest.json").read_text())["rows"]
            await dialog.get_by_label("Format").select_option("trl-prm")
            await dialog.get_by_role("button", name="Export").click()
            await expect(dialog.get_by_role("status")).not_to_contain_text("trl-sft")


@pytest.mark.promise("view:page:prompts")
async def test_model_calls_of_nodes_and_of_results_show_their_prompts(
    chromium: Browser, finished: Path
) -> None:
    with open_runs(finished) as runs:
        reader = runs.run(ids(runs)["run"])
        seed = reader.seeds()[0].id
        of_seed = f"/r/{reader.id}/s/{quote(seed, safe='')}"
        at_node = reader.node(seed, "0").calls[0].key
        of_question = next(call.key for call in reader.calls(seed) if call.key.startswith("hidden/"))
        places = {f"{of_seed}?spot=0&call={quote(at_node)}": at_node}
        places[f"{of_seed}?tab=results&call={quote(of_question)}"] = of_question
        async with open_view(runs) as view:
            for path, key in places.items():
                asked = reader.call(seed, key).prompt
                async with open_page(chromium, view, path) as page:
                    messages = page.locator(f"details[data-name='call {key}'] .message")
                    await expect(messages).to_have_count(len(asked))
                    await expect(messages.last).to_contain_text(asked[-1].text.split("\n")[0])


async def tuning_with_images(folder: Path) -> bytes:
    """Store an episode of a tuning in which an agent that is not trained was sent an image; return the image."""
    settings = GatewaySettings.model_validate(
        {
            "agents": {
                "writer": {"trained": True},
                "eyes": {"model": {"name": "frozen", "base_url": "http://x/v1"}},
            }
        }
    )
    shown, outcome = image(size=(20, 10)), EpisodeOutcome(reward=1.0)
    part = ImagePart((hash := Blob.of(shown, "image/png").hash).encode(), "image/png")
    seen = GatewayCall(
        dialect="chat", messages=(Message("user", (TextPart("What is this?"), part)),), images={hash: shown}
    )
    async with registry_at(folder / "gateway", settings) as registry:
        await registry.slots.offer(offers("t@0", size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
        for agent, call in (("writer", ask("A text.")), ("eyes", seen)):
            live, name = registry.find(begun.keys[agent])
            live.delivered([one.id for one in await live.complete(name, call, "")])
        await registry.end(OWNER, begun.episode, 1, outcome)
    calls = recorded_calls(folder / "gateway", begun.episode)
    samples = episode_samples(calls, outcome, group="t@0", id=begun.episode, temperature=1.0)
    group = Group(number=0, name="t@0", samples=samples)
    RolloutStore(folder / "rollouts").write(Batch(step=1, version=0, taken=1, groups=(group,)))
    (folder / "settings.yaml").write_text("loss: {}", "utf-8")
    return shown


@pytest.mark.promise("gateway:images:view")
async def test_the_calls_of_all_agents_of_an_episode_show_their_images(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "tuning"
    shown = await tuning_with_images(folder)
    with open_runs(folder) as runs:
        reader = runs.run(ids(runs)["tuning"])
        seed = reader.seeds()[0].id
        [call] = reader.calls(seed)
        assert (call.role, call.text) == ("eyes", "to What is this?")
        [blob] = reader.call(seed, call.key).prompt[0].images
        assert reader.blob(blob.hash) == (shown, "image/png")
        with pytest.raises(KeyError):
            reader.blob("0" * 64)
        path = f"/r/{reader.id}/s/{quote(seed, safe='')}?tab=results&call={quote(call.key)}"
        async with open_view(runs) as view, open_page(chromium, view, path) as page:
            message = page.locator(f"details[data-name='call {call.key}'] .message")
            await expect(message).to_contain_text("What is this?")
            await expect(message.locator("img")).to_have_js_property("naturalWidth", 20)
        assert write_bundle(PageData(runs), tmp_path / "bundle").images == 1
    assert (tmp_path / "bundle/blobs" / f"{blob.hash}.png").read_bytes() == shown


@pytest.mark.promise("view:page:search")
async def test_search_filters_and_the_list_of_seeds_lead_to_nodes(chromium: Browser, finished: Path) -> None:
    with open_runs(finished) as runs:
        async with open_view(runs) as view, open_page(chromium, view, f"/r/{ids(runs)['run']}") as page:
            seeds = page.get_by_role("list", name="Seeds").get_by_role("listitem")
            await expect(seeds).to_have_count(2)
            await page.keyboard.press("/")
            await page.keyboard.type("LIGHTHOUSE")
            await expect(seeds).to_have_count(1)
            await page.get_by_label("State").select_option("running")
            await expect(seeds).to_have_count(0)
            assert page.url.endswith("?tab=seeds&text=LIGHTHOUSE&state=running")
            await page.reload()
            await expect(page.get_by_role("searchbox")).to_have_value("LIGHTHOUSE")
            await page.get_by_label("State").select_option("done")
            await expect(seeds).to_have_count(1)
            await page.keyboard.press("Escape")
            await page.locator("h1").click()
            await page.keyboard.press("j")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("article", name="Seed")).to_contain_text("lighthouses")
            await page.get_by_role("button", name="Search").click()
            await page.keyboard.type("zzzz-nothing")
            await expect(page.get_by_text("Nothing was found.")).to_be_visible()


@pytest.mark.promise("view:page:search")
async def test_verdicts_filter_the_outline_and_keys_lead_to_failures(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", "Lighthouses") as tree:
        for spot in ("0", "1", "0-0", "0-1"):
            await tree.grow(spot, f"Text {spot}")
        await tree.judge(1, {})
        await tree.judge(2, {"0-1": (Verdict.ERROR, "refused")})
        with open_runs(tmp_path / "journal.db") as runs:
            async with open_view(runs) as view, open_page(chromium, view, path_of_seed(runs)) as page:
                rows = page.get_by_role("treeitem")
                await expect(rows).to_have_count(5)
                await page.get_by_role("button", name="1 error").click()
                await expect(rows).to_have_count(3)
                assert page.url.endswith("?show=x")
                await page.reload()
                await expect(rows).to_have_count(3)
                await page.get_by_role("button", name="1 error").click()
                await page.keyboard.press("n")
                article = page.get_by_role("article", name="Node 0-1")
                await expect(article).to_contain_text("refused")
                await page.keyboard.press("h")
                await page.keyboard.press("o")
                await expect(rows).to_have_count(3)


@pytest.mark.promise("view:page:links")
async def test_a_link_opened_in_a_new_tab_shows_the_same_place(chromium: Browser, finished: Path) -> None:
    with open_runs(finished) as runs:
        run = ids(runs)["run"]
        seed = f"/r/{run}/s/seed_001"
        async with open_view(runs) as view, open_page(chromium, view, seed) as page:
            await expect(page.get_by_role("article", name="Seed")).to_be_visible()
            await page.keyboard.press("l")
            await expect(page.get_by_role("article", name="Node 0")).to_be_visible()
            call = page.locator("details").filter(has_text="Model call").first
            await call.locator("summary").click()
            await expect(call).to_contain_text("Prompt")
            assert "spot=0&call=plan" in page.url
            places = [(page.url, "article[aria-label='Node 0'] .message")]
            await page.keyboard.press("r")
            places.append((page.url, ".pair"))
            await page.keyboard.press("t")
            places.append((page.url, "[role=tab][aria-selected=true] >> text=Tokens"))
            await page.goto(f"{view.url}/r/{run}?tab=tools")
            places.append((page.url, "summary:has-text('rag_search')"))
            await page.goto(f"{view.url}/r/{run}?tab=settings")
            places.append((page.url, "dt:text-is('max_depth')"))
            for url, shown in places:
                tab = await page.context.new_page()
                await tab.goto(url)
                await expect(tab.locator(shown).first).to_be_visible()
                assert tab.url == url
                await tab.close()
            await page.goto(f"{view.url}{seed}?spot=9-9")
            await expect(page.get_by_text("There is no node 9-9.")).to_be_visible()
            await page.goto(f"{view.url}/compare?a=x")
            await expect(page.get_by_role("alert")).to_contain_text("Choose two runs")
            await page.goto(f"{view.url}/r/unknown")
            await expect(page.get_by_role("alert")).to_have_text("there is no run 'unknown'")


@pytest.mark.promise("view:page:links")
async def test_back_and_forward_lead_through_the_places(chromium: Browser, finished: Path) -> None:
    with open_runs(finished) as runs:
        async with open_view(runs) as view, open_page(chromium, view, f"/r/{ids(runs)['run']}") as page:
            await page.get_by_role("link", name="seed_001").click()
            await expect(page.get_by_role("article", name="Seed")).to_be_visible()
            await page.keyboard.press("u")
            await expect(page.get_by_role("tab", name="Seeds")).to_be_visible()
            await page.go_back()
            await expect(page.get_by_role("article", name="Seed")).to_be_visible()
            await page.go_forward()
            await expect(page.get_by_role("tab", name="Seeds")).to_be_visible()


@pytest.mark.promise("view:page:keys")
async def test_the_help_lists_every_key_of_the_page(chromium: Browser, finished: Path) -> None:
    with open_runs(finished) as runs:
        path = f"/r/{ids(runs)['run']}/s/seed_001"
        async with open_view(runs) as view, open_page(chromium, view, path) as page:
            await expect(page.get_by_role("article")).to_be_visible()
            await page.keyboard.press("?")
            dialog = page.get_by_role("dialog", name="Keys")
            listed = set(await dialog.locator("kbd").all_inner_texts())
            names: list[str] = await page.evaluate("[...agentflow.keys.keys()]")
            assert {"Esc" if name == "Escape" else name for name in names} <= listed
            await page.keyboard.press("Escape")
            before = await page.evaluate("document.documentElement.dataset.theme")
            await page.keyboard.press("d")
            await page.reload()
            assert await page.evaluate("document.documentElement.dataset.theme") != before
