"""Workspaces of ended sessions."""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import IO

import anyio
import pytest
from mcp import Client

from mcp_servers.core._archive import Archive, FolderStorage
from runtimes.process import ProcessRuntime
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
    for path in folder.iterdir():
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.iterdir()]


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


class Files:
    """Files of a session: so many bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def save(self, file: IO[bytes], *, max_bytes: int | None = None) -> None:
        """Write them, as an instance does."""
        file.write(b"x" * min(self._size, max_bytes or self._size))
        file.flush()
        if max_bytes is not None and self._size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def folder_archive(folder: Path, max_bytes: int) -> Archive:
    """Return an archive in a folder."""
    return Archive(FolderStorage(folder), max_bytes)


async def is_kept(archive: Archive, handle: str) -> bool:
    file = await archive.find(handle, "ann")
    if file is not None:
        file.close()
    return file is not None


async def test_the_oldest_archives_are_deleted_first(tmp_path: Path) -> None:
    archive = folder_archive(tmp_path, 25)
    for number in range(3):
        await archive.keep(f"s{number}", "ann", Files(10))
        age(tmp_path)
    assert [await is_kept(archive, f"s{number}") for number in range(3)] == [False, True, True]
    assert modes(tmp_path) == {0o600}


async def test_an_oversized_workspace_is_not_kept_and_displaces_no_other(tmp_path: Path) -> None:
    archive = folder_archive(tmp_path, 25)
    await archive.keep("small", "ann", Files(10))
    await archive.keep("large", "ann", Files(26))
    assert await is_kept(archive, "small")
    assert not await is_kept(archive, "large")
    assert len(modes(tmp_path)) == 1
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.promise("snapshot:streamed")
async def test_files_are_written_to_disk_and_read_from_it(tmp_path: Path) -> None:
    async with ProcessRuntime(preload=()) as runtime:
        instance, other = await runtime.start(), await runtime.start()
        await instance.write("f", b"x" * 100_000)
        await folder_archive(tmp_path, 1 << 20).keep("fits", "ann", instance)
        await folder_archive(tmp_path, 50_000).keep("does not", "ann", instance)
        assert len(os.listdir(tmp_path)) == 1
        file = await folder_archive(tmp_path, 1 << 20).find("fits", "ann")
        assert file is not None
        with file:
            await other.load(file)
        assert await other.read("f") == b"x" * 100_000


@pytest.mark.promise("mcp:sessions:shared_archive")
async def test_servers_that_keep_files_in_one_folder_neither_exceed_the_limit_nor_delete_more(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            for server in range(6):
                group.start_soon(anyio.run_process, [sys.executable, "-c", KEEPS, str(tmp_path), str(server)])
    assert sizes(tmp_path) == [10] * 4


@pytest.mark.promise("mcp:sessions:shared_archive")
async def test_a_file_that_a_killed_server_left_is_invisible_and_removed_an_hour_later(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(60):
        command = [sys.executable, "-c", IS_KILLED, str(tmp_path)]
        killed = await anyio.run_process(command, check=False)
        assert killed.returncode == -signal.SIGKILL
        (name,) = os.listdir(tmp_path)
        left = tmp_path / name
        assert sizes(tmp_path) == [10]
        archive = folder_archive(tmp_path, 25)
        assert not await is_kept(archive, "s")
        await archive.keep("t", "ann", Files(10))
        assert left.exists()
        os.utime(left, (0, left.stat().st_mtime - 3700))
        await archive.keep("u", "ann", Files(10))
        assert not left.exists()
        assert [await is_kept(archive, handle) for handle in "tu"] == [True, True]


@pytest.mark.promise("mcp:sessions:shared_archive")
async def test_an_archive_is_read_to_its_end_although_another_server_deletes_it(tmp_path: Path) -> None:
    archive = folder_archive(tmp_path, 15)
    await archive.keep("s0", "ann", Files(10))
    age(tmp_path)
    file = await archive.find("s0", "ann")
    assert file is not None
    with file:
        await folder_archive(tmp_path, 15).keep("s1", "ann", Files(10))
        assert not await is_kept(archive, "s0")
        assert file.read() == b"x" * 10


@pytest.mark.promise("mcp:sessions:shared_archive")
async def test_a_folder_that_cannot_be_written_is_one_line_at_the_start_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with anyio.fail_after(60):
        words = ("bash", "--http", "127.0.0.1:0", f"sessions.archive.folder={tmp_path / 'file'}")
        async with program(*words, environment={"AGENTFLOW_SERVER_TOKEN": "t"}) as running:
            line = await running.rest()
            assert await running.process.wait() == 2
    assert line.count("\n") == 1
    assert "name a folder that this user can write to" in line


PROGRAM = """
import os, signal, sys
from pathlib import Path
import anyio
from mcp_servers.core._archive import Archive, FolderStorage
from tests.mcp_servers.core.test_archive import Files
archive = Archive(FolderStorage(Path(sys.argv[1])), 45)
"""
KEEPS = f"""{PROGRAM}
async def main():
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(archive.keep, f"s{{sys.argv[2]}}-{{number}}", "ann", Files(10))
anyio.run(main)
"""
IS_KILLED = f"""{PROGRAM}
class Killed(Files):
    async def save(self, file, *, max_bytes=None):
        await super().save(file, max_bytes=max_bytes)
        os.kill(os.getpid(), signal.SIGKILL)
anyio.run(archive.keep, "s", "ann", Killed(10))
"""
