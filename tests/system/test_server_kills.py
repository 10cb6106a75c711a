"""The tool server is killed under load and restarted: errors at clients, and leftovers."""

import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil
import pytest
import yaml

from agentflow.errors import ErrorKind
from agentflow.sandbox import Sandbox, ToolResult
from agentflow.serving._server import kept_port
from runtimes.process.trusted._server_folder import realm
from tests._dockerd import Dockerd, dockerd
from tests.mcp_servers._program import Program, program
from tests.mcp_servers.serving.test_command import address
from tests.runtimes.qemu._guests import guest

# Browsers and guests are slow on a busy machine.
pytestmark = pytest.mark.timeout(400)
TOKEN = "token-of-the-system"
CLIENTS = 4
"""Number of clients that call continuously, each in its own session."""
GONE_SECONDS = 60.0
"""Seconds; far more than the cleanup after a killed server needs."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Folder for all files of a server; short, since sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        os.chmod(folder, 0o755)  # browsers and guests run under their own users
        yield Path(folder)


@pytest.fixture(scope="module")
def engine() -> Generator[Dockerd]:
    """Docker engine of the suite."""
    with dockerd() as engine:
        yield engine


@dataclass(frozen=True)
class Server:
    """A running server."""

    running: Program
    """Its process."""
    url: str
    """Its URL."""

    def family(self) -> list[psutil.Process]:
        """Its process and all descendants."""
        own = psutil.Process(self.running.process.pid)
        return [own, *own.children(recursive=True)]


@asynccontextmanager
async def served(place: Path, settings: Mapping[str, object]) -> AsyncGenerator[Server]:
    """Server with all its folders in one place."""
    config = place / "config.yaml"
    archive = {"archive": {"folder": str(place / "files")}}
    config.write_text(yaml.safe_dump({"sessions": archive, "grace_seconds": 1, **settings}), encoding="utf-8")
    temporary = place / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {
        "AGENTFLOW_SERVER_TOKEN": TOKEN,
        "TMPDIR": str(temporary),
        "XDG_RUNTIME_DIR": str(temporary),
    }
    words = ("--config", str(config), "--http", f"127.0.0.1:{settings['port']}", "--log-level", "error")
    async with program(*words, environment=environment) as running:
        yield Server(running, await address(running))


@pytest.fixture
def port() -> Iterator[int]:
    """Address of both servers of a test, one after the other."""
    with kept_port("127.0.0.1") as port:
        yield port


async def started(sandbox: Sandbox, **arguments: object) -> str:
    """Return the handle of a new session."""
    result = await sandbox.execute("session_start", arguments)
    assert result.ok, result
    return str(result.data["session"])


async def call_until_it_fails(url: str, told: list[ToolResult], busy: anyio.Event) -> None:
    """Call continuously; return the last call's result."""
    async with Sandbox(url, token=TOKEN) as sandbox:
        handle = await started(sandbox)
        while (result := await sandbox.execute("bash_run", {"session": handle, "command": "echo x"})).ok:
            busy.set()
        told.append(result)


async def made_live(sandbox: Sandbox, backends: Mapping[str, object]) -> str:
    """Return a session in which every backend is live."""
    handle = await started(sandbox)
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "bash": ("bash_run", {"command": "(setsid sleep 4711 &); echo on"}),
        "browser": ("browser_navigate", {"url": "about:blank"}),
        "vm": ("vm_screenshot", {}),
    }
    for name in backends:
        tool, arguments = calls[name]
        result = await sandbox.execute(tool, {"session": handle, **arguments})
        assert result.ok, result
    return handle


def sound(result: ToolResult) -> bool:
    """Assert that a failed call names the lost server or session in one line."""
    assert result.error is not None
    assert "\n" not in result.error.message
    return result.error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.SESSION_NOT_FOUND)


def left_in(place: Path) -> list[str]:
    """Return the files in a server's places, except the records of used user ids."""
    top = place / "temporary"
    runtimes = top / f"agentflow-{os.geteuid()}"
    left = [path for path in top.rglob("*") if path != runtimes]
    return [str(path) for path in left if not (path.parent == runtimes and path.name.startswith("ids-"))]


def groups_of(place: Path) -> list[str]:
    """Return the cgroups of the servers of a place."""
    mark = f"agentflow-{realm(str(place / 'temporary' / f'agentflow-{os.geteuid()}' / 'any'))}-"
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if mark in folder]


def mounts() -> str:
    """Return the mounts."""
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8")


async def killed_and_started_again(
    place: Path, settings: Mapping[str, object], backends: Mapping[str, object]
) -> None:
    """Kill a server under load and serve again with the same settings."""
    told: list[ToolResult] = []
    family: list[psutil.Process] = []
    ended = alive = ""
    async with (
        served(place, settings) as server,
        Sandbox(server.url, token=TOKEN) as sandbox,
        anyio.create_task_group() as group,
    ):
        ended = await started(sandbox)
        note = {"session": ended, "command": "echo kept > note"}
        assert (await sandbox.execute("bash_run", note)).ok
        assert (await sandbox.execute("session_end", {"session": ended})).ok
        alive = await made_live(sandbox, backends)
        for _ in range(CLIENTS):
            busy = anyio.Event()
            group.start_soon(call_until_it_fails, server.url, told, busy)
            await busy.wait()
        family = server.family()
        server.running.process.send_signal(signal.SIGKILL)
        assert sound(await sandbox.execute("bash_run", {"session": alive, "command": "echo x"}))
    assert len(told) == CLIENTS
    assert all(map(sound, told))
    _, left = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(family, timeout=GONE_SECONDS))
    assert left == []

    async with served(place, settings) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        lost = await sandbox.execute("bash_run", {"session": alive, "command": "echo x"})
        assert lost.error is not None
        assert lost.error.kind is ErrorKind.SESSION_NOT_FOUND
        assert alive not in str((await sandbox.execute("session_list")).data)
        again = await started(sandbox, files_of=ended)
        read = await sandbox.execute("bash_run", {"session": again, "command": "cat note"})
        assert read.data["stdout"] == "kept\n"
        # A new start removes what the killed processes could not.
        await made_live(sandbox, backends)
        server.running.process.terminate()
        assert await server.running.process.wait() == 0
    assert left_in(place) == []
    assert groups_of(place) == []
    assert str(place) not in mounts()


@pytest.mark.promise("system:server:killed")
async def test_a_killed_server_leaves_no_shell_or_browser_and_keeps_finished_files(
    place: Path, port: int
) -> None:
    backends: dict[str, object] = {"bash": {}, "browser": {}}
    settings: dict[str, object] = {
        "port": port,
        "backends": backends,
        "warmup": [],
        "runtime": {"name": "process", "idle": False},
    }
    with anyio.fail_after(300):
        await killed_and_started_again(place, settings, backends)


@pytest.mark.promise("system:server:killed")
async def test_a_killed_server_leaves_no_container_or_guest_and_keeps_finished_files(
    place: Path, port: int, engine: Dockerd
) -> None:
    image = await anyio.to_thread.run_sync(guest, "tiny")
    qemu = {"image": str(image), "memory_mib": 96, "state_dir": str(place / "states")}
    backends: dict[str, object] = {"bash": {}, "vm": {"machine": "qemu", "qemu": qemu}}
    settings: dict[str, object] = {
        "port": port,
        "backends": backends,
        "warmup": [],
        "runtime": {"name": "docker", "socket": str(engine.socket)},
    }
    with anyio.fail_after(300):
        await killed_and_started_again(place, settings, backends)
    assert engine.docker("ps", "--all", "--quiet") == ""
