"""Proxy of a session with an allowlist: rules, answers, limits and hostile clients."""

import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream

from runtimes import NetworkAccess, parse_host_rule
from runtimes.egress import EgressProxy
from runtimes.process._network import session_proxy
from tests.runtimes.egress._site import FakeSite, fake_site

NAMES = {
    "site.example": ["127.0.0.1"],
    "deep.site.example": ["127.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "mixed.example": ["93.184.216.34", "10.0.0.1"],
}


async def resolve(host: str, port: int) -> list[str]:
    if host not in NAMES:
        raise OSError("Name or service not known")
    return NAMES[host]


@pytest.fixture(scope="module")
async def site() -> AsyncGenerator[FakeSite]:
    async with fake_site() as site:
        yield site


@asynccontextmanager
async def serving(access: NetworkAccess) -> AsyncGenerator[tuple[EgressProxy, int]]:
    proxy = session_proxy(access, "session 1", resolve=resolve)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = int(listener.getsockname()[1])
    await proxy.start(listener)
    try:
        with anyio.fail_after(60):
            yield proxy, port
    finally:
        proxy.close()


async def receive_all(stream: SocketStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


async def answer(port: int, request: bytes, *, then: bytes = b"") -> str:
    """Return everything that the proxy answers to a request, and to data sent once it has connected."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(request)
        first = b""
        if then:
            first = await stream.receive()
            await stream.send(then)
        else:
            await stream.send_eof()
        return (first + await receive_all(stream)).decode("latin-1")


async def status(port: int, host: str, wanted: int) -> int:
    """Return the status of a `CONNECT`; the connection is not used."""
    shown = f"[{host}]" if ":" in host else host
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"CONNECT {shown}:{wanted} HTTP/1.1\r\nHost: {shown}\r\n\r\n".encode())
        return int((await stream.receive()).split(b" ")[1])


@pytest.mark.promise("egress:allowlist")
async def test_the_allowlist_names_hosts_and_ports(site: FakeSite) -> None:
    port = site.port
    cases: list[tuple[str, str, int, bool]] = [
        (f"site.example:{port}", "site.example", port, True),
        (f"SITE.example:{port}", "Site.Example.", port, True),
        (f"site.example:{port - 1}-{port + 1}", "site.example", port, True),
        ("site.example:*", "site.example", port, True),
        (f"*.example:{port}", "deep.site.example", port, True),
        (f"*:{port}", "site.example", port, True),
        (f"127.0.0.1:{port}", "127.0.0.1", port, True),
        (f"127.0.0.1:{port}", "0x7f000001", port, True),
        (f"[::ffff:7f00:1]:{port}", "::ffff:127.0.0.1", port, True),
        ("site.example", "site.example", port, False),
        (f"site.example:{port + 1}", "site.example", port, False),
        (f"site.example:{port}", "deep.site.example", port, False),
        (f"*.site.example:{port}", "site.example", port, False),
        (f"*.site.example:{port}", "eviltsite.example", port, False),
        (f"site.example:{port}", "site.example.evil.test", port, False),
        (f"*.0.0.1:{port}", "127.0.0.1", port, False),
        (f"site.example:{port}", "127.0.0.1", port, False),
    ]
    for rule, host, wanted, allowed in cases:
        async with serving(NetworkAccess(allow=("other.example", rule), allow_private=True)) as (_, at):
            assert await status(at, host, wanted) == (200 if allowed else 403), (rule, host)
    assert parse_host_rule("example.org").ports == (range(80, 81), range(443, 444))


@pytest.mark.promise("egress:addresses")
async def test_private_addresses_of_allowed_names_are_refused(site: FakeSite) -> None:
    every = tuple(f"{host}:*" for host in (*NAMES, "127.0.0.1", "localhost", "[::1]"))
    for private, expected in ((False, 403), (True, 200)):
        async with serving(NetworkAccess(allow=every, allow_private=private)) as (proxy, at):
            assert await status(at, "site.example", site.port) == expected
            assert await status(at, "localhost", site.port) == expected
            assert await status(at, "metadata.example", 80) == 403
            refusal = proxy.refusal("metadata.example", 80)
            assert refusal is not None
            assert refusal.message.endswith("(network.allow_private).")
            if not private:
                assert await status(at, "mixed.example", 80) == 403
    async with serving(NetworkAccess(allow=("*",))) as (_, at):
        for host in ("127.0.0.1", "::1", "0", "2130706433", "169.254.169.254", "10.0.0.1", "::ffff:10.0.0.1"):
            assert await status(at, host, 80) == 403, host


@pytest.mark.promise("egress:told")
async def test_a_refusal_names_the_host_and_the_allowlist_and_is_logged_once(
    site: FakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "runtimes.egress")
    async with serving(NetworkAccess(allow=("example.org", "*.example.com:8080"))) as (_, at):
        line = "site.example:443 is not allowed: network.allow of this session has example.org, *.example.com:8080."
        for _ in range(2):
            text = await answer(at, b"CONNECT site.example:443 HTTP/1.1\r\n\r\n")
            head, _, body = text.partition("\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 403 {line}\r\n")
            assert body == f"agentflow: {line}\n"
        assert [record.getMessage() for record in caplog.records] == [f"session 1: {line}"]
        for number in range(80):
            assert await status(at, f"host{number}.test", 443) == 403
    assert len(caplog.records) == 50
    assert caplog.records[-1].getMessage().endswith("Further refusals of this session are not logged.")


@pytest.mark.promise("egress:allowlist")
async def test_a_request_with_a_url_is_sent_to_its_host_without_headers_for_the_proxy(site: FakeSite) -> None:
    async with serving(NetworkAccess(allow=(f"site.example:{site.port}",), allow_private=True)) as (_, at):
        text = await answer(
            at,
            f"POST http://site.example:{site.port}/a?b=c HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: Basic eA==\r\n"
            "Connection: keep-alive\r\nProxy-Connection: keep-alive\r\nX-Own: 1\r\nContent-Length: 4\r\n\r\nbody".encode(),
            # The proxy closes the connection, so a second request could not go to another host.
        )
        assert text.startswith("HTTP/1.1 200") and text.endswith("POST /a?b=c body")
    method, path, headers, body = site.requests[-1]
    assert (method, path, body) == ("POST", "/a?b=c", b"body")
    assert headers["Host"] == f"site.example:{site.port}" and headers["X-Own"] == "1"
    assert headers["Connection"] == "close" and not any(name.startswith("Proxy") for name in headers)


@pytest.mark.promise("egress:limits")
async def test_traffic_and_connections_are_bounded(site: FakeSite) -> None:
    access = NetworkAccess(
        allow=("site.example:*",), allow_private=True, max_bytes=600_000, max_connections=2
    )
    async with serving(access) as (proxy, at):
        get = f"GET http://site.example:{site.port}/large HTTP/1.1\r\n\r\n".encode()
        text = await answer(at, get)
        assert 500_000 < len(text) < 700_000 and proxy.used_bytes < 700_000
        text = await answer(at, get)
        assert text.startswith("HTTP/1.1 403 this session has used its 600000 bytes of network traffic.")
    async with (
        serving(access) as (_, at),
        await anyio.connect_tcp("127.0.0.1", at),
        await anyio.connect_tcp("127.0.0.1", at) as second,
    ):
        # The answer shows that both are served.
        await second.send(f"CONNECT site.example:{site.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await second.receive()
        async with await anyio.connect_tcp("127.0.0.1", at) as third:
            assert b" 503 the 2 connections of this session are in use." in await receive_all(third)


@pytest.mark.promise("egress:hostile")
async def test_invalid_requests_reach_no_host(site: FakeSite) -> None:
    address = f"site.example:{site.port}"
    before = len(site.requests)
    async with serving(NetworkAccess(allow=("*:*",), allow_private=True)) as (_, at):
        for request, expected in (
            (b"GET / HTTP/1.1\r\n\r\n", "400"),
            (b"CONNECT site.example HTTP/1.1\r\n\r\n", "400"),
            (b"CONNECT site.example:0 HTTP/1.1\r\n\r\n", "400"),
            (b"CONNECT site.example:99999 HTTP/1.1\r\n\r\n", "400"),
            (b"CONNECT si te.example:80 HTTP/1.1\r\n\r\n", "400"),
            (b"CONNECT :80 HTTP/1.1\r\n\r\n", "400"),
            (f"GET http://{address}/ HTTP/1.1\r\nBad header: \r\n : x\r\n\r\n".encode(), "400"),
            (f"GET http://{address}/ HTTP/1.1\r\nX: a\nHost: evil\r\n\r\n".encode(), "400"),
            (f"GET http://{address}/ HTTP/1.1\r\nX: a\r\n folded\r\n\r\n".encode(), "400"),
            (f"GET http://user:word@{address}/ HTTP/1.1\r\n\r\n".encode(), "403"),
            (f"GET https://{address}/ HTTP/1.1\r\n\r\n".encode(), "400"),
            (f"GET ftp://{address}/ HTTP/1.1\r\n\r\n".encode(), "400"),
            (f"G\0T http://{address}/ HTTP/1.1\r\n\r\n".encode(), "400"),
            (b"GET http://[::1/ HTTP/1.1\r\n\r\n", "400"),
            (b"GET http://unknown.example/ HTTP/1.1\r\n\r\n", "502"),
            (b"x" * 100_000, "400"),
            (b"\r\n\r\n\r\n", "400"),
        ):
            text = await answer(at, request)
            assert text.startswith(f"HTTP/1.1 {expected} "), (request[:60], text[:200])
            assert len(text) < 1_000
        for request in (
            b"",
            b"\x05",
            b"\x05\x00",
            b"\x05\x01\x00\x05\x02\x00\x01",
            b"\x05\x01\x00\x05\x01\x00\x09",
            b"CONNECT",
        ):
            assert len(await answer(at, request)) <= 12
    assert len(site.requests) == before


@pytest.mark.promise("egress:settings")
@pytest.mark.parametrize(
    "rule",
    [
        "https://example.org",
        "example.org/simple",
        "a b",
        "",
        "*",
        "example.org:0",
        "example.org:70000",
        "example.org:9-1",
        "a*.b",
        "::1",
    ],
)
def test_a_rule_that_names_no_host_is_refused(rule: str) -> None:
    if rule == "*":
        NetworkAccess(allow=(rule,))
        return
    with pytest.raises(ValueError, match="entry 2 of allow is not a "):
        NetworkAccess(allow=("example.org", rule))
