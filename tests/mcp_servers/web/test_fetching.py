"""Fetching of pages: redirects, sizes, types, rate limits and robots.txt."""

import pytest

from agentflow.errors import ErrorKind
from mcp_servers import Image
from tests.mcp_servers.web._site import Site
from tests.mcp_servers.web._tools import Web, rows, web_tools

LONG = "<p>" + "A sentence of some length, which is repeated. " * 20 + "</p>"


@pytest.mark.promise("web:visit:redirects")
async def test_redirects_are_followed_to_the_page_and_no_further_than_allowed(
    shared_web: Web, shared_site: Site
) -> None:
    shared_site.add("end.example/here/page", "<title>The end</title><p>Arrived.</p>")
    start = shared_site.moved("begin.example/", "http://end.example/here/x", 301)
    shared_site.moved("end.example/here/x", "page", 307)
    page = await shared_web.page(start)
    assert (page["final_url"], page["title"], page["text"]) == (
        "http://end.example/here/page",
        "The end",
        "Arrived.",
    )
    circle = shared_site.moved("circle.example/", "http://circle.example/")
    assert await shared_web.failure("visit", urls=circle) == (
        ErrorKind.FAILED,
        "web_visit: http://circle.example/: more than 5 redirects.",
    )


@pytest.mark.promise("web:visit:size")
async def test_a_page_is_read_up_to_the_limit_and_says_so(site: Site) -> None:
    site.add("long.example/", LONG * 50)
    async with web_tools(site, max_bytes=4096) as web:
        page = await web.page("http://long.example/")
        assert page["note"] == "only its first 4096 bytes"
        assert 0 < len(str(page["text"])) <= 4096


@pytest.mark.promise("web:visit:size")
async def test_a_compressed_body_is_read_up_to_the_limit_after_decompression(site: Site) -> None:
    site.add("bomb.example/", b"<p>" + b"0" * 50_000_000, zipped=True)
    site.add("mail.example/", "<p>Short.</p>", zipped=True)
    async with web_tools(site, max_bytes=100_000) as web:
        assert (await web.page("http://mail.example/"))["text"] == "Short."
        bomb = await web.call("visit", urls="http://bomb.example/")
        if bomb.ok:
            assert len(str(rows(bomb.data["pages"])[0]["text"])) <= 100_000


@pytest.mark.promise("web:visit:kinds")
async def test_text_of_every_kind_is_read_in_its_own_characters(shared_web: Web, shared_site: Site) -> None:
    site = shared_site
    site.add("latin.example/", "<p>Größe in Zürich</p>".encode("latin-1"), type="text/html; charset=latin-1")
    site.add(
        "meta.example/",
        '<meta charset="windows-1251"><p>Привет, мир, как дела</p>'.encode("cp1251"),
        type="text/html",
    )
    site.add("plain.example/notes.txt", "one\r\n\r\n\r\n\r\ntwo", type="text/plain")
    site.add("json.example/", '{"a": 1}', type="application/json")
    site.add("typeless.example/", "just words", type="application/octet-stream")
    site.add("wrong.example/", "<!DOCTYPE html><p>Marked up.</p>", type="application/octet-stream")
    texts = {
        "latin.example/": "Größe in Zürich",
        "meta.example/": "Привет, мир, как дела",
        "plain.example/notes.txt": "one\n\ntwo",
        "json.example/": '{"a": 1}',
        "typeless.example/": "just words",
        "wrong.example/": "Marked up.",
    }
    pages = await shared_web.data("visit", urls=[f"http://{address}" for address in texts])
    assert [page["text"] for page in rows(pages["pages"])] == list(texts.values())
    site.add("sound.example/", b"OggS\0\0", type="audio/ogg")
    kind, message = await shared_web.failure("visit", urls="http://sound.example/")
    assert (kind, "audio/ogg, has no readable text" in message) == (ErrorKind.FAILED, True)


@pytest.mark.promise("web:visit:pictures")
async def test_a_picture_is_shown_as_it_is(shared_web: Web, shared_site: Site) -> None:
    data = b"\x89PNG\r\n\x1a\n\0\0"
    shared_site.add("picture.example/side.png", data, type="application/octet-stream")
    result = await shared_web.call("visit", urls="http://picture.example/side.png")
    assert result.parts[0] == Image(data, "image/png")
    (page,) = rows(result.data["pages"])
    assert (page["title"], page["note"]) == ("side.png", "an image, shown with the result")
    kind, _ = await shared_web.failure("read", url="http://picture.example/side.png", query="side")
    assert kind is ErrorKind.FAILED
    shared_site.add("liar.example/", b"<script>", type="image/png")
    assert (await shared_web.failure("visit", urls="http://liar.example/"))[0] is ErrorKind.FAILED


@pytest.mark.promise("web:visit:failures")
async def test_an_error_status_is_a_typed_failure(shared_web: Web, shared_site: Site) -> None:
    shared_site.add("gone.example/", status=410)
    shared_site.add("closed.example/", status=403)
    shared_site.add("empty.example/", "")
    kind, message = await shared_web.failure("visit", urls="https://gone.example/")
    assert (kind, "TLS connection failed" in message) == (ErrorKind.FAILED, True)
    assert (await shared_web.failure("visit", urls="http://gone.example/"))[0] is ErrorKind.NOT_FOUND
    assert (await shared_web.failure("visit", urls="http://closed.example/"))[0] is ErrorKind.DENIED
    assert (await shared_web.failure("visit", urls="http://nowhere.example/"))[0] is ErrorKind.NOT_FOUND
    assert (await shared_web.page("http://empty.example/"))["text"] == ""


@pytest.mark.promise("web:retries")
async def test_a_temporary_failure_is_retried_after_the_requested_delay(site: Site) -> None:
    site.add("busy.example/", status=429, Retry_After="7")
    site.add("busy.example/", status=503)
    site.add("busy.example/", "<p>Now.</p>")
    site.add("late.example/", status=503, Retry_After="3600")
    site.add("broken.example/", status=500)
    async with web_tools(site, retry_times=3) as web:
        assert (await web.page("http://busy.example/"))["text"] == "Now."
        assert site.clock.waits == [7.0, 1.0]
        kind, message = await web.failure("visit", urls="http://late.example/")
        assert (kind, "asks to wait 3600 s" in message) == (ErrorKind.UNAVAILABLE, True)
        kind, message = await web.failure("visit", urls="http://broken.example/")
        assert message == (
            "web_visit: http://broken.example/: the site returned status 500 after 3 attempts."
        )
        assert site.requests.count("broken.example/") == 3


@pytest.mark.promise("web:pace")
async def test_one_host_is_asked_at_a_pace_and_others_do_not_wait_for_it(site: Site) -> None:
    urls = [site.add(f"{host}.example/{number}", "x") for number in range(3) for host in ("a", "b")]
    async with web_tools(site, host_interval=2.0, max_workers=1) as web:
        await web.data("visit", urls=urls)
    assert site.clock.waits == [2.0, 2.0]


@pytest.mark.promise("web:robots")
async def test_an_address_disallowed_by_robots_txt_is_not_requested(site: Site) -> None:
    site.add("wary.example/robots.txt", "User-agent: *\nDisallow: /private*\n", type="text/plain")
    site.add("wary.example/private/x", "secret")
    site.add("wary.example/open", "<p>Open.</p>")
    site.add("free.example/", "<p>Free.</p>")
    site.add("down.example/", "<p>x</p>")
    site.add("down.example/robots.txt", status=503)
    site.moved("sly.example/", "http://wary.example/private/x")
    async with web_tools(site, robots=True) as web:
        both = await web.data("visit", urls=["http://wary.example/open", "http://wary.example/open?2"])
        assert [page["text"] for page in rows(both["pages"])] == ["Open.", "Open."]
        assert (await web.page("http://free.example/"))["text"] == "Free."
        for url in ("http://wary.example/private/x", "http://sly.example/", "http://down.example/"):
            kind, message = await web.failure("visit", urls=url)
            assert (kind, "robots.txt" in message) == (ErrorKind.DENIED, True)
        assert "wary.example/private/x" not in site.requests
        assert site.requests.count("wary.example/robots.txt") == 1
    async with web_tools(site, robots=False) as web:
        assert (await web.page("http://wary.example/private/x"))["text"] == "secret"


@pytest.mark.promise("web:visit:plain")
async def test_a_site_learns_who_asks_and_nothing_from_another_visit(
    shared_web: Web, shared_site: Site
) -> None:
    shared_site.add("cookies.example/", "x", Set_Cookie="id=1; Path=/")
    shared_site.headers.clear()
    for _ in range(2):
        await shared_web.page("http://cookies.example/")
    for headers in shared_site.headers:
        assert headers["User-Agent"] == "agentflow-web/1.0"
        assert not {"Cookie", "Authorization", "Referer"} & set(headers)
