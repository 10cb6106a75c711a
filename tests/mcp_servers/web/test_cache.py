"""Caching on disk."""

from pathlib import Path

import pytest

from mcp_servers.web import CacheSettings
from mcp_servers.web._cache import WebCache
from tests.mcp_servers.web._services import KEY, Services
from tests.mcp_servers.web._site import Clock, Site
from tests.mcp_servers.web._tools import web_tools


def cache(folder: Path, clock: Clock, **settings: object) -> WebCache:
    return WebCache(CacheSettings.model_validate({"folder": folder, **settings}), clock)


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.promise("web:cache")
async def test_cached_results_and_pages_are_not_requested_again(
    site: Site, services: Services, tmp_path: Path
) -> None:
    url = site.add("public.example/", "<p>Read.</p>")
    settings = services.settings(
        serper_api_key=KEY, cache={"folder": str(tmp_path / "web"), "seconds": 100}, robots=False
    )
    request_counts: list[int] = []
    for _ in range(2):  # the second time by another server
        async with web_tools(site, **settings) as web:
            for _ in range(2):
                await web.data("search", query="x")
                await web.data("search", query="x", count=3)
                await web.data("wikipedia", query="kelder")
                assert (await web.page(url))["text"] == "Read."
        request_counts.append(len(site.requests) + len(services.requests))
    assert request_counts == [5, 5]
    assert not any(KEY.encode() in path.read_bytes() for path in kept(tmp_path))
    site.clock.now += 101
    async with web_tools(site, **settings) as web:
        await web.page(url)
    assert len(site.requests) == 2


@pytest.mark.promise("web:cache")
async def test_failures_are_not_cached(site: Site, services: Services, tmp_path: Path) -> None:
    settings = services.settings(serper_api_key=KEY, cache={"folder": str(tmp_path)})
    async with web_tools(site, **settings) as web:
        services.fails(400)
        await web.failure("search", query="x")
        await web.data("search", query="x")
        await web.failure("visit", urls="http://later.example/")
        site.add("later.example/", "<p>Now.</p>")
        assert (await web.page("http://later.example/"))["text"] == "Now."


@pytest.mark.promise("web:cache:rules")
async def test_a_cached_page_is_not_given_to_a_server_that_may_not_read_it(
    site: Site, tmp_path: Path
) -> None:
    site.add("inside.example/", "<p>Intranet.</p>")
    site.names["inside.example"] = ["10.0.0.1"]
    kept_here = {"folder": str(tmp_path)}
    async with web_tools(site, cache=kept_here, allowed_hosts=["inside.example"]) as web:
        assert (await web.page("http://inside.example/"))["text"] == "Intranet."
    async with web_tools(site, cache=kept_here) as web:
        assert "10.0.0.1" in (await web.failure("visit", urls="http://inside.example/"))[1]


@pytest.mark.promise("web:cache:bounded")
async def test_it_keeps_no_more_than_allowed_and_the_latest(tmp_path: Path) -> None:
    clock = Clock()
    bounded = cache(tmp_path, clock, bytes=10_000)
    for number in range(60):
        clock.now += 1
        await bounded.put(("n", str(number)), "x" * 500)
    assert sum(path.stat().st_size for path in kept(tmp_path)) <= 10_000
    assert await bounded.get(("n", "59"), str) == "x" * 500
    assert await bounded.get(("n", "0"), str) is None
    await bounded.put(("large",), "x" * 20_000)
    assert await bounded.get(("large",), str) is None


@pytest.mark.promise("web:cache:bounded")
async def test_a_disk_that_fails_or_a_file_that_is_damaged_is_no_failure(tmp_path: Path) -> None:
    clock = Clock()
    bounded = cache(tmp_path, clock)
    await bounded.put(("a",), "good")
    (path,) = kept(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"\xc1 damaged")
    assert await bounded.get(("a",), str) is None
    (tmp_path / "file").write_text("in the way")
    blocked = cache(tmp_path / "file", clock)
    await blocked.put(("a",), "lost")
    assert await blocked.get(("a",), str) is None


@pytest.mark.promise("web:cache")
async def test_without_settings_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    none = WebCache(None, Clock())
    await none.put(("a",), "x")
    assert await none.get(("a",), str) is None
    usual = WebCache(CacheSettings(), Clock())
    await usual.put(("a",), "x")
    assert [path.relative_to(tmp_path).parts[:2] for path in kept(tmp_path)] == [("agentflow", "web")]
