"""Address checks of the reader: only public addresses, in every notation and after redirects."""

import pytest

from agentflow.errors import ErrorKind
from tests.mcp_servers.web._site import PUBLIC, Site
from tests.mcp_servers.web._tools import Web, web_tools

TRICKY = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0x7f.1/",
    "http://00000177.0.0.01/",
    "http://127.0.0.1./",
    "http://0.0.0.0/",
    "http://0/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://anything.localhost/",
    "http://[::1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[ff02::1]/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xA9FEA9FE/",
    "http://0251.0376.0251.0376/",
    "http://169.254.169.254:80/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://127。0。0。1/",
    "http://127\uff0e0\uff0e0\uff0e1/",
    "http://１２７.０.０.１/",
    "http://①②⑦.⓪.⓪.①/",
    "http://ｌｏｃａｌｈｏｓｔ/",
    "http://%31%32%37.0.0.1/",
    "http://127%2e0%2e0%2e1/",
    "http://inside.example/",
    "http://alias.example/",
    "http://now-and-then.example/",
    "http://mapped.example/",
    "http://metadata.google.internal/",
    "http://metadata.google.internal./",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "ftp://public.example/",
    "gopher://public.example:70/_x",
    "data:text/html,hello",
    "dict://public.example:11211/stat",
    "javascript:alert(1)",
    "//127.0.0.1/",
    "http://user:word@public.example/",
    "http://public.example@127.0.0.1/",
    "http://127.0.0.1#@public.example/",
    "http://127.0.0.1\\@public.example/",
    "http://public.example\\@127.0.0.1/",
    "http:\\\\127.0.0.1\\",
    "http:///etc/passwd",
    "http://127.0.0.1:99999/",
    "http://[::1/",
    "http://\t127.0.0.1/",
    "http://127.0.0.1\r\nHost: x/",
]
"""None of these may be reached."""

INSIDE = {
    "inside.example": ["10.1.2.3"],
    "alias.example": ["127.0.0.1"],
    "now-and-then.example": [PUBLIC, "192.168.0.5"],
    "mapped.example": ["::ffff:169.254.169.254"],
    "metadata.google.internal": ["169.254.169.254"],
}
"""Names that lead inside."""

REFUSED = {ErrorKind.DENIED, ErrorKind.BAD_ARGUMENTS, ErrorKind.NOT_FOUND}


@pytest.fixture(scope="module")
def web(shared_web: Web, shared_site: Site) -> Web:
    """The tools, in a web with names that lead inside; whatever is reached there has a page."""
    shared_site.names |= INSIDE
    shared_site.add("public.example/", "<p>Hello.</p>")
    return shared_web


@pytest.mark.promise("web:ssrf")
@pytest.mark.parametrize("url", TRICKY)
async def test_an_address_that_leads_inside_is_refused(web: Web, shared_site: Site, url: str) -> None:
    before = len(shared_site.dialled)
    kind, message = await web.failure("visit", urls=url)
    assert kind in REFUSED, message
    assert shared_site.dialled[before:] == []


@pytest.mark.promise("web:ssrf:redirect")
@pytest.mark.parametrize("url", TRICKY)
async def test_a_redirect_that_leads_inside_is_refused(web: Web, shared_site: Site, url: str) -> None:
    number = TRICKY.index(url)
    if "\r" in url or any(ord(character) > 0x7F for character in url):
        url = "http://[::ffff:a00:1]/"  # no header can carry it
    start = shared_site.moved(f"hop-{number}.example/", url)
    shared_site.dialled.clear()
    kind, message = await web.failure("visit", urls=start)
    assert kind in REFUSED or "redirects to an invalid address" in message, message
    assert shared_site.dialled == [PUBLIC]


@pytest.mark.promise("web:ssrf:public")
async def test_public_addresses_are_reached_with_any_port_and_path(web: Web, shared_site: Site) -> None:
    shared_site.names["six.example"] = ["2606:2800:220:1:248:1893:25c8:1946"]
    shared_site.add("six.example/a%20b/%C3%BC", "<p>Found over the newer protocol.</p>")
    for url in ("http://public.example", "http://PUBLIC.example./", "http://public.example:8080/?a=%26#part"):
        assert (await web.page(url))["text"] == "Hello."
    assert (await web.page("http://six.example/a b/ü"))["text"] == "Found over the newer protocol."


@pytest.mark.promise("web:ssrf:rebinding")
async def test_a_name_is_resolved_once_for_check_and_connection(
    shared_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_site.add("turning.example/", "<p>Once.</p>")
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    async def turning(host: str, port: int) -> list[str]:
        return next(answers)

    monkeypatch.setattr(shared_site, "resolve", turning)
    async with web_tools(shared_site) as fresh:
        shared_site.dialled.clear()
        assert (await fresh.page("http://turning.example/"))["text"] == "Once."
        assert shared_site.dialled == [PUBLIC]
        shared_site.add("elsewhere.example/", "x")
        kind, _ = await fresh.failure("visit", urls="http://elsewhere.example/")
        assert kind is ErrorKind.DENIED
        assert shared_site.dialled == [PUBLIC]


@pytest.mark.promise("web:ssrf:allowed")
async def test_hosts_that_the_server_allows_are_reached_and_no_others(site: Site) -> None:
    site.names |= INSIDE
    site.add("inside.example/", "<p>Intranet.</p>")
    async with web_tools(site, allowed_hosts=["inside.example"]) as web:
        assert (await web.page("http://inside.example/"))["text"] == "Intranet."
        assert (await web.failure("visit", urls="http://alias.example/"))[0] is ErrorKind.DENIED
    async with web_tools(site, allow_private=True) as web:
        assert (await web.page("http://inside.example/"))["text"] == "Intranet."
        assert (await web.failure("visit", urls="http://metadata.google.internal/"))[0] is ErrorKind.DENIED


@pytest.mark.promise("web:ssrf")
async def test_an_address_refused_for_the_reader_is_not_passed_to_a_service(site: Site) -> None:
    site.names |= INSIDE
    async with web_tools(site, visit_method="jina", jina_api_key="k", jina_url="http://127.0.0.1:9") as web:
        for url in ("http://inside.example/", "http://127.1/", "file:///etc/passwd"):
            assert (await web.failure("visit", urls=url))[0] is ErrorKind.DENIED
