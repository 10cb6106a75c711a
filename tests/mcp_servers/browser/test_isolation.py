"""Isolation of Chromium, and crashes."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest

from agentflow.errors import ConfigurationError
from mcp_servers import ToolTable
from mcp_servers.browser import BrowserBackend
from mcp_servers.browser._page_actions import devtools_session
from mcp_servers.browser._state import BrowserState
from mcp_servers.core import LOCAL
from runtimes import Runtime
from tests._plain_user import PlainUser
from tests.mcp_servers.browser._browsing import Browsing, browsing_table, new_session
from tests.mcp_servers.browser._site import Site

ROOT = Path(__file__).parents[3]
GIB = 1024**3


def chromiums(parent: int | None = None) -> list[psutil.Process]:
    """Chromium's processes below a process."""
    processes: list[psutil.Process] = []
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("chrom") and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def renderers() -> set[int]:
    """The processes that show pages."""
    pids: set[int] = set()
    for process in chromiums():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--type=renderer" in process.cmdline():
                pids.add(process.pid)
    return pids


def ended(process: psutil.Process) -> bool:
    """It runs no longer, whether or not somebody has asked how it ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended while it was looked at
        return True


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes by itself."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110  # processes tell nobody when they end
            await anyio.sleep(0.05)


@pytest.mark.promise("browser:confined")
async def test_chromium_is_an_ordinary_user_with_nothing_of_the_host(browsing: Browsing) -> None:
    await browsing.open("/")
    processes = chromiums()
    assert processes
    for process in processes:
        # One that has ended is not there, and in the empty root of a page nothing can be asked for.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            check_confined(process.pid)
            assert "--no-sandbox" not in process.cmdline()
    pages = renderers()
    assert pages
    # One that is just being started puts its filter on before it is given a page.
    await until(lambda: all(map(filtered, pages)))


def filtered(pid: int) -> bool:
    """It has ended, or lives under a filter of system calls."""
    try:
        return status(pid)["Seccomp"] == "2"
    except OSError:
        return True


def check_confined(pid: int) -> None:
    """It is nobody, and sees nothing."""
    fields = status(pid)
    # Root has given it a user of its own; an ordinary user's is confined as that user.
    uids = {int(uid) for uid in fields["Uid"].split()}
    assert uids == ({0x6E000000 + os.getpid()} if os.geteuid() == 0 else {os.geteuid()})
    assert fields["NoNewPrivs"] == "1"
    root = Path(f"/proc/{pid}/root")
    for path in ("etc/shadow", "etc/passwd", str(ROOT).lstrip("/"), "home", "root", "var"):
        assert not (root / path).exists(), path
    assert networks(pid) <= {"lo"}
    ours = set(os.environb) - {b"HOME", b"PATH", b"LANG", b"PWD", b"DBUS_SESSION_BUS_ADDRESS"}
    assert not set(environment(pid)) & ours


def networks(pid: int) -> set[str]:
    """The network devices that a process sees."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def listening(pid: int) -> set[int]:
    """The ports that are listened on in a process's network; none, if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return set()
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines if line.split()[3] == "0A"}


def environment(pid: int) -> list[bytes]:
    """The names of a process's environment variables."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return [word.partition(b"=")[0] for word in words if b"=" in word]


def folders() -> set[Path]:
    """The folders of browsers."""
    return set(Path(tempfile.gettempdir()).glob("agentflow-browser-*"))


def status(pid: int) -> dict[str, str]:
    """Return the kernel's status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


@pytest.mark.promise("browser:confined")
async def test_nothing_listens_for_the_protocol_that_drives_the_browser(browsing: Browsing) -> None:
    await browsing.open("/")
    # The proxy's socket is the only one in its network.
    assert set().union(*(listening(process.pid) for process in chromiums())) == {1080}


@pytest.mark.promise("browser:sessions")
async def test_sessions_share_nothing(browsers: ToolTable, site: Site) -> None:
    first, second = await new_session(browsers, site), await new_session(browsers, site)
    for session in (first, second):
        await session.open("/store")
    for name in ("Local", "Session", "Cookie"):
        await first.press(name)
    assert await first.out() == '"a=1 | 1 | 1"'
    await second.open("/store")
    assert await second.out() == '" | - | -"'
    await first.end()
    await second.end()


@pytest.mark.promise("browser:sessions")
async def test_sessions_act_at_the_same_time_and_an_ended_one_leaves_no_page(
    browsers: ToolTable, site: Site
) -> None:
    sessions = [await new_session(browsers, site) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(session.open, "/form")
    before = renderers()
    for session in sessions:
        await session.end()
    await until(lambda: len(renderers() & before) < len(before))


@pytest.mark.promise("browser:crash")
async def test_after_a_crash_sessions_get_an_error_and_then_a_new_browser(
    site: Site, runtime: Runtime
) -> None:
    before = {process.pid for process in chromiums()}
    async with browsing_table(site, runtime) as table:
        first, second = await new_session(table, site), await new_session(table, site)
        await first.open("/")
        await second.open("/")
        # Process numbers start over at their maximum, so the browser does not always have the lowest.
        (browser,) = (
            process
            for process in chromiums()
            if process.pid not in before
            and "crashpad" not in process.name()
            and not any("--type=" in word for word in process.cmdline())
        )
        os.kill(browser.pid, signal.SIGKILL)
        await until(lambda: ended(browser))
        for session in (first, second):
            kind, message = await session.failure("snapshot")
            assert kind == "unavailable"
            assert "crashed" in message
            if "next call" not in message:
                assert "next call" in (await session.failure("snapshot"))[1]
            assert "Home" in await session.open("/")
        await first.data("evaluate", function="() => 1")


@pytest.mark.promise("browser:crash")
async def test_a_page_that_crashes_takes_only_its_tab_along(browsing: Browsing) -> None:
    await browsing.open("/")
    await browsing.data("tabs", action="new", url=f"{browsing.site.url}/form")
    tab = browsing.table.sessions.find(browsing.session, LOCAL).get(BrowserState).current
    assert tab is not None
    with anyio.move_on_after(1):
        async with devtools_session(tab.page) as ask:
            await ask("Page.crash")
    await until(lambda: tab.crashed)
    kind, message = await browsing.failure("snapshot")
    assert kind == "unavailable"
    assert "crashed" in message
    assert (await browsing.data("snapshot"))["title"] == "Home"


GREEDY = {
    "buffers": "() => { const all = []; for (;;) all.push(new Uint8Array(2 ** 24).fill(1)); }",
    "numbers": "() => { const all = []; for (;;) all.push(new Array(2 ** 20).fill(1.5)); }",
}


@pytest.mark.promise("browser:memory")
async def test_a_page_that_takes_memory_without_end_ends_alone(site: Site, runtime: Runtime) -> None:
    async with browsing_table(site, runtime, memory_bytes=GIB) as table:
        quiet = await new_session(table, site)
        await quiet.open("/form")
        await quiet.data("evaluate", function="() => { window.kept = 41; }")
        for script in GREEDY.values():
            greedy = await new_session(table, site)
            await greedy.open("/")
            kind, message = await greedy.failure("evaluate", function=script)
            assert kind in ("failed", "unavailable"), message
            if kind == "unavailable":
                assert "the page has crashed" in message
                assert "its tab was closed" in (await greedy.failure("snapshot"))[1]
            assert "Home" in await greedy.open("/")
            await greedy.end()
        assert (await quiet.data("evaluate", function="() => window.kept + 1"))["value"] == "42"


@pytest.mark.promise("browser:memory")
async def test_all_pages_share_one_bound_where_groups_can_be_made(site: Site, runtime: Runtime) -> None:
    async with browsing_table(site, runtime, memory_bytes=GIB) as table:
        await (await new_session(table, site)).open("/")
        # Others on this machine have some too.
        (group,) = (candidate for candidate in groups() if members(candidate) & renderers())
        limit = next(
            path for name in ("memory.limit_in_bytes", "memory.max") if (path := group / name).exists()
        )
        assert int(limit.read_text()) == GIB
    assert not group.exists()


def members(group: Path) -> set[int]:
    """The processes in a group; none, if it has gone."""
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def groups() -> list[Path]:
    """The groups of browsers, which count their memory."""
    top = Path("/sys/fs/cgroup/memory")
    # Others come and go meanwhile, which this way to look does not mind.
    folders = (Path(name) for name, _, _ in os.walk(top if top.is_dir() else top.parent))
    return [folder for folder in folders if folder.match(f"agentflow-browser-{os.geteuid()}-*/chromium")]


PROGRAM = """
import anyio, os, sys
from mcp_servers import ToolTable
from mcp_servers.browser import BrowserBackend

async def main():
    async with ToolTable([BrowserBackend()]) as table:
        session = (await table.call("session_start")).data["session"]
        result = await table.call("browser_navigate", {"session": session, "url": "about:blank"})
        print(result.ok, result.error, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.promise("browser:orphans")
async def test_a_killed_server_leaves_no_process_and_the_next_one_removes_its_files() -> None:
    server = await anyio.open_process([sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    with anyio.fail_after(60):
        assert (await server.stdout.receive()).startswith(b"True")
    processes = chromiums(server.pid)
    before = folders()
    assert processes
    server.kill()
    await server.wait()
    await until(lambda: all(map(ended, processes)))
    await server.aclose()
    async with ToolTable([BrowserBackend()]) as table:
        session = (await table.call("session_start")).data["session"]
        assert (await table.call("browser_navigate", {"session": session, "url": "about:blank"})).ok
        assert before - folders()


PLAIN = """
import anyio, contextlib, psutil
from mcp_servers import ToolTable
from mcp_servers.browser import BrowserBackend

async def main():
    async with ToolTable([BrowserBackend()]) as table:
        session = (await table.call("session_start")).data["session"]
        result = await table.call("browser_navigate", {"session": session, "url": "data:text/html,<h1>Hi</h1>"})
        assert result.ok, result.error
        assert 'heading "Hi"' in result.data["snapshot"]
        seen = []
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # helpers that end while they are looked at
                if one.name().startswith("chrom"):
                    seen.append(one.cmdline())
        assert not any("--no-sandbox" in words for words in seen)
        print(len(seen) > 3)

anyio.run(main)
"""


@pytest.mark.promise("browser:confined")
def test_an_ordinary_user_s_chromium_is_confined_the_same_way(plain_user: PlainUser) -> None:
    done = plain_user.run_python(PLAIN, timeout=100)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.promise("browser:missing")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"executable": "/nowhere/chromium"}, "install the package chromium"),
        ({"executable": "/bin/false"}, "the browser"),
    ],
)
async def test_a_missing_browser_is_reported_on_first_use_in_one_line(
    settings: dict[str, object], expected: str
) -> None:
    async with ToolTable([BrowserBackend()], settings={"browser": settings}) as table:
        session = (await table.call("session_start")).data["session"]
        for _ in range(2):
            result = await table.call("browser_navigate", {"session": session, "url": "about:blank"})
            assert result.error is not None
            assert result.error.kind == "unavailable"
            assert expected in result.error.message
            assert "\\n" not in result.error.message


@pytest.mark.promise("browser:missing")
async def test_importing_the_backend_loads_nothing_heavy() -> None:
    code = "import sys, mcp_servers.browser; assert not {'playwright', 'greenlet'} & set(sys.modules)"
    done = await anyio.run_process([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("browser:settings")
async def test_wrong_settings_are_refused_and_groups_can_be_switched_off() -> None:
    with pytest.raises(ConfigurationError, match=r"cap is unknown; did you mean caps\?"):
        BrowserBackend().check({"cap": ["core"]})
    async with ToolTable([BrowserBackend()], settings={"browser": {"caps": ["core"]}}) as table:
        result = await table.call("browser_mouse_up", {})
        assert result.error is not None
        assert result.error.kind == "unavailable"
        assert "browser.caps" in result.error.message


@pytest.mark.promise("browser:downloads:limit")
async def test_a_file_that_is_too_large_is_not_taken(browsers: ToolTable, site: Site) -> None:
    small = await new_session(browsers, site, file_bytes=100_000)
    await small.open("/files")
    page = await small.data("click", target="text=Huge")
    assert "more than 100000 bytes" in str(page["downloads"])
    await small.end()
