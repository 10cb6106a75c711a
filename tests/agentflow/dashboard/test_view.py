"""The live view: who may use it, and what it answers."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from agentflow.dashboard import api_path, open_view
from agentflow.inspection import open_runs
from agentflow.journal import open_journal
from tests.agentflow.dashboard.conftest import browser

PNG = b"\x89PNG\r\n\x1a\n"

REFUSED: tuple[tuple[str, str, dict[str, str], int], ...] = (
    ("GET", "/", {}, 401),
    ("GET", "/api/runs", {}, 401),
    ("GET", "/static/app.js", {}, 401),
    ("GET", "/?token=guessed", {}, 401),
    ("GET", "/api/runs", {"Cookie": "agentflow_view_{port}=guessed"}, 401),
    ("GET", "/api/runs", {"Cookie": '"; agentflow_view_{port}'}, 401),
    ("GET", "/{link}", {"Host": "evil.example:{port}"}, 421),
    ("GET", "/{link}", {"Host": "127.0.0.1:1"}, 421),
    ("GET", "/{link}", {"Origin": "https://evil.example"}, 403),
    ("GET", "/{link}", {"Origin": "null"}, 403),
    ("POST", "/{link}", {}, 403),
)
FOREIGN: tuple[tuple[str, dict[str, str]], ...] = (
    ("GET", {"Host": "evil.example"}),
    ("GET", {"Origin": "http://127.0.0.1:1"}),
    ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}),
    ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}),
    ("POST", {}),
    ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
)
"""Requests that a foreign page could make a browser with a session send."""


@pytest.mark.promise("view:guard")
async def test_only_a_browser_with_the_link_may_use_it_and_a_link_works_once(finished: Path) -> None:
    with open_runs(finished) as runs:
        async with open_view(runs) as view, aiohttp.ClientSession() as stranger:
            port = view.url.rpartition(":")[2]
            link = view.link().removeprefix(f"{view.url}/")
            for method, path, headers, status in REFUSED:
                sent = {name: value.format(port=port) for name, value in headers.items()}
                url = f"{view.url}{path.format(link=link)}"
                async with stranger.request(method, url, headers=sent) as answer:
                    assert answer.status == status, (method, path, headers)
                    assert "Set-Cookie" not in answer.headers
            async with stranger.get(
                f"{view.url}/r/x?token={link[7:]}&spot=0-1", allow_redirects=False
            ) as opened:
                assert (opened.status, opened.headers["Location"]) == (303, "/r/x?spot=0-1")
                cookie = opened.headers["Set-Cookie"]
                assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
            async with stranger.get(f"{view.url}/{link}", allow_redirects=False) as again:
                assert (again.status, "Set-Cookie" in again.headers) == (401, False)


@pytest.mark.promise("view:guard")
async def test_other_pages_can_not_use_the_session_of_a_browser(finished: Path) -> None:
    with open_runs(finished) as runs:
        async with browser(runs) as (view, client):
            for method, headers in FOREIGN:
                async with client.request(method, "/api/runs", headers=headers) as answer:
                    assert answer.status in (403, 421), (method, headers)
                    assert "Access-Control-Allow-Origin" not in answer.headers
            # A link on a page elsewhere: a redirect would lose the cookie.
            path = view.link("//evil.example/")
            async with client.get(
                path, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
            ) as answer:
                assert answer.headers["Refresh"] == "0; url=/evil.example/"


@pytest.mark.promise("view:hostile")
async def test_what_a_tool_returned_can_not_run_in_the_page(finished: Path, tmp_path: Path) -> None:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
    async with open_journal(tmp_path / "journal.db") as journal:
        run = await journal.open_run("hostile", {})
        blobs = {
            mime: await run.put_blob((PNG if mime == "image/png" else svg) + mime.encode(), mime)
            for mime in ("image/svg+xml", "text/html", "image/png", "text/javascript\r\nX-Own: 1")
        }
    with open_runs(tmp_path / "journal.db") as runs:
        run_id = runs.runs()[0].id
        async with browser(runs) as (_, client):
            for mime, blob in blobs.items():
                async with client.get(f"/api/r/{run_id}/blob/{blob.hash}") as answer:
                    shown = mime == "image/png"
                    assert answer.status == 200
                    assert answer.headers["Content-Type"] == (mime if shown else "text/plain; charset=utf-8")
                    assert answer.headers.get("Content-Disposition") == (None if shown else "attachment")
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert "X-Own" not in answer.headers
            async with client.get("/") as page:
                policy = page.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert page.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.promise("view:api")
async def test_the_page_reads_everything_through_one_interface(finished: Path) -> None:
    with open_runs(finished) as runs:
        async with browser(runs) as (_, client):

            async def load(path: str) -> Any:  # noqa: ANN401 - JSON
                async with client.get(f"/api/{path}") as answer:
                    assert answer.status == 200, (path, await answer.text())
                    return await answer.json()

            (run,) = await load("runs")
            of_run = ("r", run["id"])
            assert (await load(api_path(*of_run)))["state"] == "done"
            first, second = await load(api_path(*of_run, "seeds"))
            assert [seed["id"] for seed in await load(api_path(*of_run, "seeds", after=first["id"]))] == [
                second["id"]
            ]
            of_seed = (*of_run, "s", first["id"])
            spots = (await load(api_path(*of_seed, "skeleton")))["spots"]
            assert spots[0] == ""
            rows = await load(api_path(*of_seed, "nodes", spots=",".join(spots[1:3])))
            assert [row["spot"] for row in rows] == spots[1:3]
            node = await load(api_path(*of_seed, "node", spot=spots[1]))
            assert node["tool"] == rows[0]["tool"]
            call = await load(api_path(*of_seed, "call", key=node["calls"][0]["key"]))
            assert call["call"] == node["calls"][0]
            for what in ("summary", "results", "tokens"):
                await load(api_path(*of_seed, what))
            for what in ("tools", "metrics"):
                await load(api_path(*of_run, what))
            assert await load(api_path(*of_run, "search", text=node["tool"].split(":")[-1]))
            for path, status in {
                "nothing": 404,
                "r/unknown": 404,
                api_path(*of_run, "s", "unknown", "skeleton"): 404,
                api_path(*of_run, "s", "../../etc", "skeleton"): 404,
                api_path(*of_seed, "node", spot="9-9"): 404,
                api_path(*of_seed, "node", spot="';--"): 404,
                api_path(*of_run, "blob", "0" * 64): 404,
                api_path(*of_run, "seeds", limit="-1"): 400,
                api_path(*of_run, "seeds", state="asleep"): 400,
            }.items():
                async with client.get(f"/api/{path}") as answer:
                    assert answer.status == status, path
                    assert "\n" not in (await answer.json())["error"]


@pytest.mark.promise("view:live")
async def test_a_new_node_reaches_every_viewer_without_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("max_depth=2", "depth_threshold=1", "control=false", f"output_dir={folder}")
    from agentflow import asynthesize

    await asynthesize(seeds=["Explore the ferries"], overrides=words, progress=False)
    with open_runs(folder) as runs, anyio.fail_after(60):
        async with browser(runs) as (_, client):
            run = runs.runs()[0].id
            async with client.get(f"/api/r/{run}/events") as one, client.get(f"/api/r/{run}/events") as two:
                news: list[dict[str, Any]] = []
                assert one.headers["Content-Type"].startswith("text/event-stream")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_grow_another, [*words])
                    news = [await _next_change(stream) for stream in (one, two)]
            for change in news:
                assert change["seeds"] or change["summary"]


async def _grow_another(words: list[str]) -> None:
    from agentflow import asynthesize

    await asynthesize(
        seeds=["Explore the ferries", "Explore the lighthouses"], overrides=words, progress=False
    )


async def _next_change(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    async for line in stream.content:
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line[6:])
            return found
    raise AssertionError("the stream has ended")


@pytest.mark.promise("view:live")
async def test_a_view_that_ends_by_an_error_leaves_nothing_that_hinders_the_next(finished: Path) -> None:
    with open_runs(finished) as runs:
        run = runs.runs()[0].id
        for _ in range(2):
            with pytest.raises(ExceptionGroup), anyio.fail_after(60):
                async with browser(runs) as (_, client), client.get(f"/api/r/{run}/events") as stream:
                    assert stream.status == 200
                    raise OSError("the program of the viewer failed")
