"""Real server processes under bursts, half requests, suspension and floods of bad requests."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from agentflow.http_server import max_connections
from runtimes import MIB
from tests.agentflow.http_server._served import KINDS

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: 127."
ROOT = Path(__file__).parents[3]
EVERY = pytest.mark.parametrize("kind", KINDS)


class Server:
    """A server process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.log = log
        self.links: list[asyncio.StreamWriter] = []
        self._process = psutil.Process(process.pid)

    @property
    def memory(self) -> int:
        """Its memory in bytes."""
        return int(self._process.memory_info().rss)

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Suspend it during the block."""
        self._process.suspend()
        try:
            yield
        finally:
            self._process.resume()


@contextmanager
def served(kind: str, folder: Path, *, limit: int = 8192, header_seconds: float = 10.0) -> Generator[Server]:
    """Serve in a process of its own."""
    words = ["-m", "tests.agentflow.http_server._served", kind, str(limit), str(header_seconds)]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=log, cwd=ROOT) as process,
    ):
        server = Server(process, folder / "log")
        try:
            yield server
        finally:
            for writer in server.links:
                writer.transport.abort()
            process.send_signal(signal.SIGTERM)


async def opened(server: Server, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and send some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    server.links.append(writer)
    writer.write(sent)
    return reader, writer


async def outcome(server: Server) -> str:
    """Make a request on a new connection; return what came of it."""
    try:
        reader, _ = await opened(server, REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return type(error).__name__
    if head.startswith(b"HTTP/1.1 503"):
        return "503" if b"retry-after" in head.lower() else "503 without Retry-After"
    return head.split(b" ")[1].decode()


async def burst(server: Server, size: int, half: int) -> Counter[str]:
    """Make requests at once, each on a new connection, beside half requests; return how often each outcome came."""
    for _ in range(half):
        await opened(server, HALF)
    found: Counter[str] = Counter()

    async def ask() -> None:
        found[await outcome(server)] += 1

    async with anyio.create_task_group() as group:
        for _ in range(size):
            group.start_soon(ask)
    return found


@pytest.mark.promise("http_server:burst")
@EVERY
@pytest.mark.parametrize(
    ("size", "half"), [(300, 0), (1000, 600), pytest.param(3000, 1500, marks=pytest.mark.soak)]
)
async def test_a_burst_of_new_connections_loses_no_request(
    kind: str, size: int, half: int, tmp_path: Path
) -> None:
    max_connections()
    with served(kind, tmp_path) as server:
        assert await burst(server, size, half) == {"200": size}


@pytest.mark.promise("http_server:burst")
@EVERY
async def test_requests_beyond_the_limit_of_connections_are_answered_with_503_and_never_reset(
    kind: str, tmp_path: Path
) -> None:
    max_connections()
    with served(kind, tmp_path, limit=100) as server:
        found = await burst(server, 90, 100)
        assert set(found) <= {"200", "503"}
        assert found.total() == 90
        lines = server.log.read_text().splitlines()
        assert len(lines) <= 1, lines


@pytest.mark.promise("http_server:half")
@EVERY
async def test_half_requests_take_little_memory_and_give_way(kind: str, tmp_path: Path) -> None:
    max_connections()
    with served(kind, tmp_path, header_seconds=0.5) as server:
        assert await outcome(server) == "200"
        before = server.memory
        half = [await opened(server, HALF + b"x" * 30_000) for _ in range(1200)]
        assert await outcome(server) == "200"
        assert server.memory - before < 100 * MIB
        for reader, _ in half:
            assert await ended(reader) == b""


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the server closes the connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.promise("http_server:half")
@EVERY
async def test_endless_headers_are_answered_with_431(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path) as server:
        reader, _ = await opened(server, HALF + b"x" * 100_000)
        assert (await ended(reader)).startswith(b"HTTP/1.1 431")


@pytest.mark.promise("http_server:suspended")
@EVERY
@pytest.mark.parametrize(
    ("rounds", "header_seconds"), [(3, 0.3), pytest.param(20, 10.0, marks=pytest.mark.soak)]
)
async def test_a_suspended_server_reads_what_arrived_before_anything_expires(
    kind: str, rounds: int, header_seconds: float, tmp_path: Path
) -> None:
    with served(kind, tmp_path, header_seconds=header_seconds) as server:
        for _ in range(rounds):
            # New connections, and some that have made a request.
            links = [await opened(server, REQUEST) for _ in range(10)]
            for reader, _ in links:
                assert await answered(reader)
            with server.suspended():
                links += [await opened(server) for _ in range(10)]
                for _, writer in links:
                    writer.write(REQUEST)
                # As long as all limits.
                await anyio.sleep(header_seconds * 1.2 + 0.5)
            assert [await answered(reader) for reader, _ in links] == [True] * len(links)


async def answered(reader: asyncio.StreamReader) -> bool:
    """Read one answer; return false if the connection ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return head.startswith(b"HTTP/1.1 200")


@pytest.mark.promise("http_server:log")
@EVERY
async def test_a_flood_of_bad_requests_writes_a_line_per_kind(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path) as server:
        for number in range(300):
            reader, _ = await opened(server, b"\x16\x03 %d bad\r\n\r\n" % number)
            await ended(reader)
        assert await outcome(server) == "200"
        assert server.log.read_text().count("\n") < 30


@pytest.mark.promise("http_server:half")
def test_a_server_raises_its_limit_of_descriptors() -> None:
    assert max_connections() > 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
