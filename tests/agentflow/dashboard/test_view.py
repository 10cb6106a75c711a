"""The live view: who may use it, and what it answers."""

import json
from itertools import product
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import aiohttp
import anyio
import anyio.to_thread
import pytest
from yarl import URL

from agentflow.dashboard import api_path, open_view
from agentflow.dashboard._page_data import INDEX, static_files
from agentflow.inspection import open_runs
from agentflow.journal import open_journal
from tests.agentflow.dashboard._access import use_link
from tests.agentflow.dashboard.conftest import browser

PNG = b"\x89PNG\r\n\x1a\n"

PAGES = ("/", "/r/{run}", "/r/{run}/s/seed_001?spot=0", "/compare?a=x", "/r/../api/runs", "/?token={secret}")
"""Addresses of the page, which is the same for all runs."""
DATA = (
    "/api/runs",
    "/api/r/{run}",
    "/api/r/{run}/seeds",
    "/api/r/{run}/s/seed_001/skeleton",
    "/api/r/{run}/s/seed_001/text?spot=&part=0",
    "/api/r/{run}/s/seed_001/whole?spot=&part=0",
    "/api/r/{run}/blob/0123456789abcdef",
    "/api/r/{run}/events",
    "/api/r/{run}/export",
    "/api/session",
    "/api/nothing",
    "/api",
    "//api/runs",
    "/r",
    "/static",
    "/compare/",
    "/nothing",
)
"""Addresses that need the secret."""
INVALID: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {}),
    ("?token={secret}&secret={secret}&access_token={secret}", {}),
    ("", {"Cookie": "agentflow_view_{port}={secret}; secret={secret}; Authorization=Bearer {secret}"}),
    ("", {"Authorization": "Bearer "}),
    ("", {"Authorization": "Bearer {secret}x"}),
    ("", {"Authorization": "Bearer {used}"}),
    ("", {"Authorization": "Basic {secret}"}),
    ("", {"Authorization": "{secret}"}),
    ("", {"X-Authorization": "Bearer {secret}", "Proxy-Authorization": "Bearer {secret}"}),
)
"""Ends of addresses and headers that do not replace the secret in the header."""
FOREIGN: tuple[tuple[str, dict[str, str], int], ...] = (
    ("GET", {"Host": "evil.example:{port}"}, 421),
    ("GET", {"Host": "127.0.0.1:1"}, 421),
    ("GET", {"Host": "evil.example"}, 421),
    ("GET", {"Origin": "http://127.0.0.1:1"}, 403),
    ("GET", {"Origin": "https://evil.example"}, 403),
    ("GET", {"Origin": "null"}, 403),
    ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
    ("POST", {}, 403),
    ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
)
"""Requests that a foreign page could make a browser send, with their refusal."""


@pytest.mark.promise("view:guard")
async def test_everything_but_the_files_of_the_page_needs_the_secret_in_the_header(finished: Path) -> None:
    index = static_files()[INDEX][0]
    with open_runs(finished) as runs:
        async with browser(runs) as (view, client), aiohttp.ClientSession() as stranger:
            names = {
                "run": runs.runs()[0].id,
                "port": view.url.rpartition(":")[2],
                "secret": client.headers["Authorization"].removeprefix("Bearer "),
                "used": view.link().rpartition("=")[2],
            }
            await anyio.to_thread.run_sync(use_link, f"{view.url}/#token={names['used']}")
            for page in PAGES:
                async with stranger.get(URL(f"{view.url}{page}".format(**names), encoded=True)) as answer:
                    assert (answer.status, await answer.read()) == (200, index), page
            for name, (body, _) in static_files().items():
                async with stranger.get(f"{view.url}/static/{name}") as answer:
                    assert (answer.status, await answer.read()) == (200, body), name
            for method, path, (end, headers) in product(("GET", "HEAD", "POST", "OPTIONS"), DATA, INVALID):
                if end and "?" in path:
                    end = f"&{end[1:]}"
                url = URL(f"{view.url}{path}{end}".format(**names), encoded=True)
                sent = {name: value.format(**names) for name, value in headers.items()}
                async with stranger.request(
                    method, url, headers={"Origin": view.url, **sent}, allow_redirects=False
                ) as answer:
                    assert answer.status == 401, (method, path, end, headers)
                    assert "Set-Cookie" not in answer.headers
                    if method != "HEAD":
                        line = (await answer.json())["error"]
                        assert "the link that `agentflow view` printed" in line
                        assert "\n" not in await answer.text()


@pytest.mark.promise("view:guard")
async def test_a_link_works_once_and_the_next_one_is_printed(finished: Path) -> None:
    used: list[str] = []
    with open_runs(finished) as runs:
        async with open_view(runs, on_used=lambda view: used.append(view.link())) as view:
            first = view.link("/r/x?spot=0-1")
            assert first.startswith(f"{view.url}/r/x?spot=0-1#token=")
            headers = await anyio.to_thread.run_sync(use_link, first)
            async with (
                aiohttp.ClientSession(view.url, headers=headers) as client,
                client.get("/api/runs") as answer,
            ):
                assert answer.status == 200
            with pytest.raises(HTTPError, match="401") as refused:
                await anyio.to_thread.run_sync(use_link, first)
            refused.value.close()
            assert len(used) == 1
            assert await anyio.to_thread.run_sync(use_link, used[0]) == headers


@pytest.mark.promise("view:guard")
async def test_other_pages_and_hosts_are_refused_even_with_the_secret(finished: Path) -> None:
    with open_runs(finished) as runs:
        async with browser(runs) as (view, client):
            for path in ("/api/runs", "/", "/api/session"):
                for method, headers, status in FOREIGN:
                    sent = {
                        name: value.format(port=view.url.rpartition(":")[2])
                        for name, value in headers.items()
                    }
                    async with client.request(method, path, headers=sent) as answer:
                        assert answer.status == status, (method, path, headers)
                        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.promise("view:hostile")
async def test_what_a_tool_returned_can_not_run_in_the_page(finished: Path, tmp_path: Path) -> None:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
    async with open_journal(tmp_path / "journal.db") as journal:
        run = await journal.open_run("hostile", {})
        blobs = {
            mime: await run.blobs.put((PNG if mime == "image/png" else svg) + mime.encode(), mime)
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
                assert page.headers["Referrer-Policy"] == "no-referrer"
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
