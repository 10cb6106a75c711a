"""Network access of pages: typed addresses, links, redirects, scripts and DNS rebinding."""

import re
import socket
from collections.abc import AsyncGenerator

import anyio
import pytest

from mcp_servers import ToolTable
from runtimes.egress import AddressPolicy, EgressProxy
from tests.mcp_servers.browser._browsing import Browsing
from tests.mcp_servers.browser._site import Site

PRIVATE = [
    "http://127.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://any.localhost:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://0.0.0.0:{port}/",
    "http://169.254.169.254/latest/meta-data/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
]
"""Addresses of this machine and its neighbours; `{port}` is open, but not allowed."""


@pytest.fixture(scope="module")
async def secret(anyio_backend: str) -> AsyncGenerator["Secret"]:
    """Something on this machine that pages have no business with."""
    server = Secret()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server.port = listener.extra(anyio.abc.SocketAttribute.local_port)

        async def count(stream: anyio.abc.SocketStream) -> None:
            server.visits += 1
            await stream.aclose()

        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, count)
            yield server
            group.cancel_scope.cancel()


class Secret:
    """Address of the server, and its number of visitors."""

    def __init__(self) -> None:
        self.port = 0
        self.visits = 0


@pytest.mark.promise("browser:addresses")
async def test_no_private_address_is_opened(browsing: Browsing, secret: Secret) -> None:
    for template in PRIVATE:
        url = template.format(port=secret.port)
        kind, message = await browsing.failure("navigate", url=url)
        assert kind == "denied", (url, message)
        assert "allowed_hosts" in message
    assert secret.visits == 0


@pytest.mark.promise("browser:addresses")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://settings",
        "view-source:http://example.com",
        "devtools://devtools/bundled/inspector.html",
        "javascript:alert(1)",
        "ftp://example.com/",
        "http://user:word@example.com/",
        "http://example.com@127.0.0.1/",
    ],
)
async def test_no_address_of_another_kind_is_opened(browsing: Browsing, url: str) -> None:
    assert (await browsing.failure("navigate", url=url))[0] == "denied"


@pytest.mark.promise("browser:addresses")
async def test_redirects_and_scripts_lead_to_no_private_address(browsing: Browsing, secret: Secret) -> None:
    for template in PRIVATE:
        url = template.format(port=secret.port)
        kind, message = await browsing.failure("navigate", url=f"{browsing.site.url}/away?to={url}")
        assert kind == "denied", (url, message)
        assert "it leads to" in message
    for url in (
        f"http://127.0.0.1:{secret.port}/",
        f"ws://127.0.0.1:{secret.port}/",
        "http://[::1]/",
        "file:///etc/passwd",
    ):
        await browsing.open(f"/reach?url={url}")
        page = await browsing.data("wait_for", text="reached")
        assert "not reached" in str(page["snapshot"])
    assert secret.visits == 0


@pytest.mark.promise("browser:addresses")
async def test_a_page_gets_nowhere_by_scripts_that_go_to_other_kinds_of_addresses(browsing: Browsing) -> None:
    await browsing.open("/")
    for url in ("file:///etc/passwd", "chrome://version", "view-source:about:blank"):
        await browsing.call("evaluate", function=f"() => {{ location.href = '{url}'; }}")
        assert "root:" not in await browsing.snapshot()
        opened = await browsing.call("evaluate", function=f"() => !!window.open('{url}')")
        for tab in range(2):
            await browsing.call("tabs", action="select", index=tab)
            assert "root:" not in str((await browsing.call("snapshot")).data)
        assert opened.ok
        await browsing.data("close")
        await browsing.open("/")


@pytest.mark.promise("browser:addresses")
async def test_no_session_allows_itself_more(browsers: ToolTable) -> None:
    for settings in (
        {"allow_private": True},
        {"allowed_hosts": ["*"]},
        {"executable": "/bin/sh"},
        {"caps": ["core"]},
    ):
        refused = await browsers.call("session_start", {"settings": {"browser": settings}})
        assert refused.error is not None
        assert refused.error.kind == "denied"


async def ask(port: int, host: str, wanted: int, kind: int = 3) -> int:
    """Return the proxy's reply to a request for a host and port."""
    name = host.encode()
    address = bytes((len(name),)) + name if kind == 3 else socket.inet_aton(host)
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"\x05\x01\x00")
        assert await stream.receive(2) == b"\x05\x00"
        await stream.send(bytes((5, 1, 0, kind)) + address + wanted.to_bytes(2, "big"))
        return (await stream.receive(10))[1]


@pytest.mark.promise("browser:rebinding")
async def test_the_proxy_connects_to_the_address_it_has_checked(site: Site, secret: Secret) -> None:
    answers = {
        "good.test": ["127.0.0.1"],
        "turns.test": ["93.184.216.34", "127.0.0.1"],
        "bad.test": ["127.0.0.1"],
    }

    async def resolve(host: str, port: int) -> list[str]:
        return answers[host]

    proxy = EgressProxy(AddressPolicy(allowed_hosts=(f"good.test:{site.port}",)), resolve=resolve)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    await proxy.start(listener)
    port = int(listener.getsockname()[1])
    try:
        assert await ask(port, "good.test", site.port) == 0
        assert await ask(port, "good.test", secret.port) == 2
        assert await ask(port, "turns.test", secret.port) == 2
        assert await ask(port, "bad.test", secret.port) == 2
        assert await ask(port, "127.0.0.1", secret.port, kind=1) == 2
        reason = proxy.refusal("bad.test", secret.port)
        assert reason is not None
        assert re.search("loopback", reason.message)
    finally:
        proxy.close()
    assert secret.visits == 0


@pytest.mark.promise("browser:addresses")
async def test_an_unreachable_address_is_distinguished_from_a_refused_one(
    browsing: Browsing, site: Site
) -> None:
    kind, _ = await browsing.failure("navigate", url="http://nowhere.invalid/")
    assert kind == "not_found"
    assert "Not here" in await browsing.open("/nothing")
    assert (await browsing.failure("navigate", url="http://"))[0] == "bad_arguments"
