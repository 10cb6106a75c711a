"""Workspaces of ended sessions."""

import os
import signal
from pathlib import Path

import anyio
import pytest
from mcp import Client

from mcp_servers.core._archive import Archive
from runtimes import Snapshot
from tests.mcp_servers._program import program
from tests.mcp_servers._serving import connected
from tests.mcp_servers.serving.test_command import address

pytestmark = pytest.mark.promise("mcp:sessions:archive")


async def start(client: Client, **arguments: object) -> str:
    started = await client.call_tool("session_start", arguments)
    assert not started.is_error, started.content
    assert started.structured_content is not None
    return str(started.structured_content["session"])


async def bash(client: Client, session: str, command: str) -> str:
    ran = await client.call_tool("bash_run", {"session": session, "command": command})
    assert ran.structured_content is not None
    return str(ran.structured_content["stdout"])


def age(folder: Path) -> None:
    """Make existing archives older than later ones, however coarse the disk's clock is."""
    for place in folder.iterdir():
        os.utime(place, ns=(0, place.stat().st_mtime_ns - 10**9))


def modes(folder: Path) -> set[int]:
    return {place.stat().st_mode & 0o777 for place in folder.iterdir()}


async def test_a_new_session_starts_with_the_files_of_one_that_ended_before_the_server_was_killed(
    tmp_path: Path,
) -> None:
    words = ("bash", "--http", "127.0.0.1:0", f"sessions.archive.folder={tmp_path / 'kept'}")
    words = (*words, "tokens={ann: one, ben: two}")
    with anyio.fail_after(100):
        async with program(*words) as running, connected(await address(running), "one") as ann:
            ended, alive = await start(ann), await start(ann)
            for session in (ended, alive):
                await bash(ann, session, "mkdir -p notes && echo kept > notes/a && chmod 700 notes/a")
            await ann.call_tool("session_end", {"session": ended})
            running.process.send_signal(signal.SIGKILL)
            await running.process.wait()
        async with program(*words) as running:
            url = await address(running)
            async with connected(url, "one") as ann, connected(url, "two") as ben:
                again = await start(ann, files_of=ended)
                assert await bash(ann, again, "stat -c %a notes/a; cat notes/a") == "700\nkept\n"
                for client, handle in ((ann, alive), (ann, "../" + ended), (ben, ended)):
                    refused = await client.call_tool("session_start", {"files_of": handle})
                    assert refused.is_error
                    assert "are kept" in str(refused.content)


async def test_a_server_that_keeps_no_files_says_so() -> None:
    with anyio.fail_after(60):
        words = ("bash", "--http", "127.0.0.1:0", "token=none")
        async with program(*words) as running, connected(await address(running)) as client:
            refused = await client.call_tool("session_start", {"files_of": "session-1"})
            assert refused.is_error
            assert "sessions.archive.folder" in str(refused.content)


async def test_the_oldest_archives_are_deleted_first(tmp_path: Path) -> None:
    archive = Archive(tmp_path, 25)
    for number in range(3):
        await archive.keep(f"s{number}", "ann", Snapshot(b"x" * 10))
        age(tmp_path)
    assert [await archive.find(f"s{number}", "ann") is not None for number in range(3)] == [False, True, True]
    assert modes(tmp_path) == {0o600}


async def test_an_oversized_workspace_is_not_kept_and_displaces_no_other(tmp_path: Path) -> None:
    archive = Archive(tmp_path, 25)
    await archive.keep("small", "ann", Snapshot(b"x" * 10))
    await archive.keep("large", "ann", Snapshot(b"x" * 26))
    assert await archive.find("small", "ann") is not None
    assert await archive.find("large", "ann") is None
