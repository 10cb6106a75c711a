"""Search: every engine as documented, and unexpected responses."""

import logging

import pytest

from agentflow.errors import ErrorKind
from tests.mcp_servers.web._services import KEY, Services
from tests.mcp_servers.web._site import Site
from tests.mcp_servers.web._tools import rows, text_of, web_tools

ENGINES: dict[str, dict[str, object]] = {
    "serper": {"serper_api_key": KEY},
    "google": {"google_api_key": KEY, "google_cx": "engine-1"},
    "gemini": {"gemini_api_key": KEY},
    "searxng": {"jina_api_key": KEY},
}


def settings_of(engine: str, services: Services, **more: object) -> dict[str, object]:
    address = {"searxng_url": f"{services.url}/searxng/"} if engine == "searxng" else {}
    return services.settings(search=engine, **ENGINES[engine], **address, **more)


@pytest.mark.promise("web:search")
async def test_serper_gives_hits_and_its_own_answer(site: Site, services: Services) -> None:
    async with web_tools(site, **settings_of("serper", services)) as web:
        result = await web.call("search", query="bridges", count=2)
        (row,) = rows(result.data["results"])
        assert row["answer"] == "42"
        assert rows(row["hits"]) == [
            {
                "position": 1,
                "title": "bridges 1",
                "url": "https://site-1.example/",
                "snippet": "Snippet 1.",
                "date": "3 days ago",
            },
            {
                "position": 2,
                "title": "bridges 2",
                "url": "https://site-2.example/",
                "snippet": "Snippet 2.",
                "date": None,
            },
        ]
        assert text_of(result) == (
            "42\n\n[1] bridges 1 (3 days ago)\nhttps://site-1.example/\nSnippet 1.\n\n"
            "[2] bridges 2\nhttps://site-2.example/\nSnippet 2."
        )
    assert services.requests == [("/serper/search", {"q": "bridges", "num": 2})]


@pytest.mark.promise("web:search")
async def test_google_gemini_and_searxng_give_the_same_kind_of_hits(site: Site, services: Services) -> None:
    seen: dict[str, object] = {}
    for engine in ("google", "gemini", "searxng"):
        async with web_tools(site, **settings_of(engine, services)) as web:
            (row,) = rows((await web.data("search", query="bridges"))["results"])
            seen[engine] = [(hit["title"], hit["url"], hit["snippet"]) for hit in rows(row["hits"])]
            if engine == "gemini":
                assert row["answer"] == "It is long. It is old."
            if engine == "google":
                assert rows((await web.data("search", query="nothing"))["results"])[0]["hits"] == []
    assert seen == {
        "google": [("One", "https://one.example/", "A b …")],
        "gemini": [
            ("a.example", "https://a.example/", "It is long."),
            ("b.example", "https://b.example/", "It is long. It is old."),
        ],
        "searxng": [("S", "https://s.example/", "Found by many.")],
    }


@pytest.mark.promise("web:search:several")
async def test_each_query_of_a_list_has_its_own_outcome(site: Site, services: Services) -> None:
    async with web_tools(site, **settings_of("serper", services, max_workers=1)) as web:
        services.fails(400, '{"message": "Query not allowed"}')
        result = await web.call("search", query=["one", "two"])
        first, second = rows(result.data["results"])
        assert (first["query"], first["hits"]) == ("one", [])
        assert "status 400: " in str(first["error"])
        assert (second["error"], len(rows(second["hits"]))) == (None, 3)
        assert text_of(result).startswith("# one\n\nnot searched: Serper returned status 400")
        assert services.queries() == ["one", "two"]
        services.fails(400)
        services.fails(400)
        kind, _ = await web.failure("search", query=["one", "two"])
        assert kind is ErrorKind.FAILED


@pytest.mark.promise("web:services:failures")
@pytest.mark.parametrize("engine", ENGINES)
async def test_any_response_of_an_engine_is_handled_in_one_typed_line(
    site: Site, services: Services, engine: str
) -> None:
    async with web_tools(site, **settings_of(engine, services, retry_times=2)) as web:
        for status, body, kind, expected in (
            (401, f"key {KEY}\nis wrong", ErrorKind.DENIED, "check its key: key *** is wrong"),
            (
                403,
                "no",
                ErrorKind.DENIED,
                "formats must have json" if engine == "searxng" else "check its key",
            ),
            (400, '{"reason": "API_KEY_INVALID"}', ErrorKind.DENIED, "status 400; check its key"),
            (200, "<html>", ErrorKind.UNAVAILABLE, "invalid response"),
            (200, "[1]", ErrorKind.UNAVAILABLE, "invalid response"),
            (200, "", ErrorKind.UNAVAILABLE, "invalid response"),
            (200, "\ufffd" * 9, ErrorKind.UNAVAILABLE, "invalid response"),
            (302, "", ErrorKind.FAILED, "status 302"),
        ):
            services.fails(status, body)
            refused, message = await web.failure("search", query="x")
            assert (refused, expected in message) == (kind, True), message
        for status, kind in ((429, ErrorKind.BUSY), (500, ErrorKind.UNAVAILABLE)):
            services.fails(status)
            services.fails(status, "over")
            refused, message = await web.failure("search", query="x")
            assert refused is kind
            assert f"status {status}: over after 2 attempts" in message


@pytest.mark.promise("web:retries")
async def test_an_engine_that_is_busy_is_asked_again_when_it_says(site: Site, services: Services) -> None:
    async with web_tools(site, **settings_of("serper", services)) as web:
        services.fails(429, "slow down", Retry_After="3")
        services.fails(503, "", Retry_After="Wed, 15 Jan 2027 08:00:13 GMT")
        await web.data("search", query="x")
    assert site.clock.waits == [3.0, 10.0]


@pytest.mark.promise("web:secrets")
async def test_no_key_is_shown_logged_or_put_in_an_address(
    site: Site, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for engine in ENGINES:
        async with web_tools(site, **settings_of(engine, services)) as web:
            good = await web.call("search", query="x")
            services.fails(403, f"{KEY} {KEY}")
            bad = await web.call("search", query="y")
            assert KEY not in repr((good, bad))
    assert KEY not in caplog.text
    assert KEY not in repr(services.requests)


@pytest.mark.promise("web:images")
async def test_pictures_are_found_by_words_and_by_a_picture(site: Site, services: Services) -> None:
    async with web_tools(site, **settings_of("serper", services)) as web:
        result = await web.call("image_search", query="bridge")
        assert rows(result.data["hits"]) == [
            {
                "position": 1,
                "title": "A bridge",
                "image_url": "https://pics.example/bridge.jpg",
                "page_url": "https://pics.example/bridge",
                "source": "Pics",
                "width": 640,
                "height": 480,
            }
        ]
        assert "picture: https://pics.example/bridge.jpg" in text_of(result)
        same = await web.data("reverse_image_search", image_url="https://pics.example/bridge.jpg")
        assert rows(same["hits"])[0]["title"] == "The bridge of Kelder"
        assert services.requests[-1] == ("/serper/lens", {"url": "https://pics.example/bridge.jpg"})
        kind, _ = await web.failure("reverse_image_search", image_url="file:///etc/passwd")
        assert kind is ErrorKind.DENIED
    async with web_tools(site, **settings_of("searxng", services)) as web:
        (hit,) = rows((await web.data("image_search", query="bridge"))["hits"])
        assert (hit["image_url"], hit["page_url"]) == ("https://s.example/s.png", "https://s.example/")


@pytest.mark.promise("web:search:engine")
async def test_a_call_that_names_google_uses_google_or_says_what_it_used(
    site: Site, services: Services
) -> None:
    used: dict[str, object] = {}
    for configured in ("google", "gemini", "serper", "searxng"):
        settings = settings_of(configured, services) | {"search": None}
        async with web_tools(site, **settings) as web:
            result = await web.call("search", query="bridges", engine="google")
            assert result.ok, result.error
            used[services.requests[-1][0].split("/")[1]] = result.data["note"]
            if result.data["note"]:
                assert text_of(result).startswith(f"{result.data['note']}\n\n[1] ")
    *with_google, without = used.values()
    assert with_google == [None] * 3
    assert without == (
        "google is not configured (set GOOGLE_API_KEY (or the setting google_api_key) and GOOGLE_CX"
        " (or the setting google_cx)); searched with searxng."
    )


@pytest.mark.promise("web:search:engine")
async def test_a_call_may_prefer_another_service_than_the_usual_one(site: Site, services: Services) -> None:
    settings = settings_of("serper", services) | ENGINES["google"]
    async with web_tools(site, **settings) as web:
        await web.data("search", query="bridges")
        await web.data("search", query="bridges", engine="google")
        assert (await web.failure("search", query="bridges", engine="bing"))[0] is ErrorKind.BAD_ARGUMENTS
    assert [path.split("/")[1] for path, _ in services.requests] == ["serper", "customsearch"]
