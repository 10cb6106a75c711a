"""The proxy in front of several servers: bytes, routes and failures."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from agentflow.http_server import Connections, _servers
from mcp_servers.serving._http_framing import MAX_HEAD_BYTES, MessageHead
from mcp_servers.serving._proxy import ClientLink, Upstream
from mcp_servers.serving._server_names import handles_of

pytestmark = pytest.mark.promise("mcp:workers:proxy")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class RecordingServer:
    """A server behind the proxy."""

    def __init__(self, path: Path, serve: Serve) -> None:
        self.socket = path
        self.active = self.sessions = self.served = 0
        self.full_for: set[bytes] = set()
        self.serve = serve
        self.open = 0
        self.listening: asyncio.Server

    async def listen(self) -> None:
        """Begin to accept connections."""
        self.listening = await asyncio.start_unix_server(self._answer, self.socket)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


class FixedRouter:
    """Two servers by name."""

    def __init__(self, servers: dict[str, RecordingServer]) -> None:
        self.servers = servers

    def server(self, name: str | None) -> Upstream | None:
        return self.servers.get(name or "")

    def least_busy(self, *, starting: bytes | None, last: Upstream | None) -> Upstream | None:
        return min(
            self.servers.values(),
            key=lambda server: (starting in server.full_for, server.sessions + server.active, server.served),
            default=None,
        )

    def unreachable(self, server: Upstream) -> None:
        self.servers = {name: other for name, other in self.servers.items() if other is not server}

    def local(self, head: MessageHead) -> Awaitable[bytes] | None:
        return None


class Proxied:
    """A proxy with two servers, and raw clients."""

    def __init__(self, router: FixedRouter, port: int) -> None:
        self.router = router
        self.port = port

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes and return everything until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return answer


async def answer_every_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its body and path."""
    while True:
        head = MessageHead.parse((await reader.readuntil(b"\r\n\r\n"))[:-4])
        body = await reader.readexactly(int(head.fields.get(b"content-length", b"0")))
        text = head.line[1] + b" " + body
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text))
        writer.write(text)


@asynccontextmanager
async def proxied(folder: Path, serve: Serve = answer_every_request) -> AsyncGenerator[Proxied]:
    """Start two servers and the proxy."""
    router = FixedRouter({name: RecordingServer(folder / name, serve) for name in ("a", "b")})
    servers = [*router.servers.values()]
    for server in servers:
        await server.listen()
    connections = Connections(1000)
    async with anyio.create_task_group() as group:
        listening = await asyncio.get_running_loop().create_server(
            lambda: connections.limited(lambda: ClientLink(router, connections, group.start_soon)),
            "127.0.0.1",
            0,
        )
        with anyio.fail_after(60), connections.watched():
            yield Proxied(router, listening.sockets[0].getsockname()[1])
        listening.close()
        connections.abort_all()
        for server in servers:
            server.listening.close()
        while len(connections) or any(server.open for server in servers):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


def message(path: str = "/", body: bytes = b"", headers: str = "") -> bytes:
    """Return a request."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


CLOSE = "connection: close\r\n"


def refusal_of(answer: bytes) -> tuple[bytes, str]:
    """Return the status and message of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split()[1], json.loads(body)["error"]["message"]


async def test_requests_on_one_connection_are_answered_in_order_by_different_servers(tmp_path: Path) -> None:
    async with proxied(tmp_path) as proxy:
        names = ["a", "b", "b", "a"]
        data = b"".join(
            message(f"/{index}", b"x" * index, f"mcp-param-session: {handles_of(name)()}\r\n")
            for index, name in enumerate(names)
        )
        answer = await proxy.exchange(data + message("/last", b"", CLOSE))
        bodies = [part.partition(b"HTTP")[0] for part in answer.split(b"\r\n\r\n")[1:]]
        assert bodies == [b"/0 ", b"/1 x", b"/2 xx", b"/3 xxx", b"/last "]
        assert [server.active for server in proxy.router.servers.values()] == [0, 0]
        assert [server.served for server in proxy.router.servers.values()] in ([3, 2], [2, 3])


@pytest.mark.parametrize("piece", [1, 7, 100])
async def test_a_request_in_any_pieces_arrives_unchanged(tmp_path: Path, piece: int) -> None:
    body = bytes(range(256)) * 2
    data = message("/p", body, CLOSE)
    async with proxied(tmp_path) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])
            await writer.drain()
        assert (await reader.read()).endswith(b"\r\n\r\n/p " + body)
        writer.close()


async def test_a_large_body_and_a_large_answer_pass_with_bounded_memory(tmp_path: Path) -> None:
    body = b"0123456789abcdef" * 500_000
    async with proxied(tmp_path) as proxy:
        answer = await proxy.exchange(message("/large", body, CLOSE))
        assert answer.endswith(body)
        assert len(answer) < len(body) + 200


async def test_a_client_that_reads_slowly_gets_every_answer_on_its_connection(tmp_path: Path) -> None:
    body = b"0123456789abcdef" * 100_000
    async with proxied(tmp_path) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1000)
        for _ in range(3):
            writer.write(message("/slow", body))
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
            left = len(b"/slow ") + len(body)
            while left:
                left -= len(await reader.read(min(left, 10_000)))
        writer.close()


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", b"400", "the first line or a header is malformed"),
        (message(headers="transfer-encoding: chunked\r\n"), b"400", "the end of the body is unclear"),
        (b"POST / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES, b"431", "the headers are too large"),
        (
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            b"400",
            "the size of a chunk is malformed",
        ),
    ],
)
async def test_what_is_no_http_request_is_refused_in_one_line(
    tmp_path: Path, data: bytes, status: bytes, reason: str
) -> None:
    async with proxied(tmp_path) as proxy:
        assert refusal_of(await proxy.exchange(data)) == (status, reason)
        assert (await proxy.exchange(message("/next", b"", CLOSE))).endswith(b"/next ")


async def test_a_small_body_that_does_not_arrive_in_time_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_servers, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(_servers, "HEADER_SECONDS", 0.0)
    async with proxied(tmp_path) as proxy:
        with suppress(ConnectionError):
            assert await proxy.exchange(message(body=b"x" * 100)[:-1]) == b""


async def test_a_server_that_ends_before_its_answer_is_reported_with_the_session(tmp_path: Path) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart")

    session = handles_of("a")()
    async with proxied(tmp_path, die) as proxy:
        status, reason = refusal_of(
            await proxy.exchange(message(headers=f"mcp-param-session: {session}\r\n"))
        )
        assert (status, session in reason, "has ended" in reason) == (b"502", True, True)
        status, reason = refusal_of(await proxy.exchange(message()))
        assert (status, "may or may not have completed" in reason) == (b"502", True)


async def test_an_answer_that_breaks_off_stays_visibly_incomplete(tmp_path: Path) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n")
        await writer.drain()

    async with proxied(tmp_path, die) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(message())
        answer = b""
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                answer += data
        assert b"0\r\n\r\n" not in answer
        writer.close()


async def test_a_request_for_a_server_that_is_gone_is_answered_by_another(tmp_path: Path) -> None:
    session = f"mcp-param-session: {handles_of('a')()}\r\n{CLOSE}"
    async with proxied(tmp_path) as proxy:
        proxy.router.servers["a"].listening.close()
        assert (await proxy.exchange(message("/x", b"1", session))).endswith(b"/x 1")
        proxy.router.servers["b"].listening.close()
        assert refusal_of(await proxy.exchange(message())) == (
            b"503",
            "no server process is available: try again later.",
        )


async def test_a_client_that_disconnects_ends_the_connection_to_the_server(tmp_path: Path) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        with suppress(ConnectionError):
            assert await reader.read() == b""
        ended.set()

    async with proxied(tmp_path, wait) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(message())
        await begun.wait()
        writer.close()
        await ended.wait()
        while any(server.active for server in proxy.router.servers.values()):
            await anyio.lowlevel.checkpoint()


async def test_starts_of_sessions_go_to_the_server_with_the_fewest_that_has_room(tmp_path: Path) -> None:
    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nagentflow-sessions: 7; full\r\ncontent-length: 2\r\n\r\nok")

    start = f"mcp-name: session_start\r\nauthorization: Bearer t\r\n{CLOSE}"
    async with proxied(tmp_path, full) as proxy:
        a, b = proxy.router.servers.values()
        b.sessions = 9
        assert (await proxy.exchange(message(headers=start))).endswith(OK[-2:])
        assert (a.served, a.sessions, a.full_for) == (1, 7, {b"Bearer t"})
        await proxy.exchange(message(headers=start))
        assert (a.served, b.served) == (1, 1)
        await proxy.exchange(message(headers=start.replace("Bearer t", "Bearer u")))
        assert a.served + b.served == 3
