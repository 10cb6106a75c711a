"""Shared and per-session servers."""

import json
import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import pytest

from mcp_servers.files import FilesBackend
from runtimes import Runtime
from runtimes.process import ProcessRuntime
from tests.mcp_servers.external._mounting import Mounting, bad, from_npm, mounting, offer, server_settings

INSIDE = ["/usr/bin/python3", "-I", "-S", "/opt/program/_program.py", "{workspace}/tools.json"]


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    async with ProcessRuntime(idle=False) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a server to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    offer(folder)
    (folder / "start.txt").write_text("from the start", encoding="utf-8")
    return folder


async def fork(mounted: Mounting, session: str) -> str:
    """The handle of a fork."""
    result = await mounted.table.call("session_fork", {"session": session})
    assert result.ok, result
    return str(result.data["session"])


@pytest.mark.promise("external:shared")
async def test_a_shared_server_is_the_same_for_all_and_needs_no_session(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        assert not mounted.table.tool("mcp:bad.pid").stateful
        assert await mounted.text("bad.remember", word="a") == "a"
        assert await mounted.text("bad.remember", word="b") == "a b"


@pytest.mark.promise("external:per-session")
async def test_each_session_has_its_own_server_on_a_copy_of_the_files(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = server_settings(
        from_npm("server-filesystem", "{workspace}"), per_session=True, workspace=str(folder)
    )
    servers = {"bad": server_settings(bad(tmp_path), per_session=True), "files": files}
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    async with mounting(servers) as mounted:
        one_session, other = await mounted.session(), await mounted.session()
        assert await mounted.text("bad.remember", session=one_session, word="a") == "a"
        assert await mounted.text("bad.remember", session=other, word="b") == "b"
        written = await mounted.call(
            "files.write_file", session=one_session, path="start.txt", content="mine"
        )
        assert written.ok, written
        read = await mounted.call("files.read_text_file", session=other, path="start.txt")
        assert read.data["content"] == "from the start"
        assert (folder / "start.txt").read_text(encoding="utf-8") == "from the start"
        await mounted.table.call("session_end", {"session": one_session})
        kind, _ = await mounted.failure("bad.remember", session=one_session)
        assert kind == "session_not_found"
        assert len(os.listdir(copies)) == 1
    assert os.listdir(copies) == []


@pytest.mark.promise("external:fork")
async def test_a_session_that_used_a_stateful_server_cannot_be_forked(tmp_path: Path) -> None:
    servers = {
        "own": server_settings(bad(tmp_path), per_session=True),
        "kept": server_settings(bad(tmp_path), stateful=True),
        "plain": server_settings(bad(tmp_path)),
    }
    async with mounting(servers) as mounted:
        for name in ("own", "kept"):
            session = await mounted.session()
            await mounted.text("plain.pid")
            copy = await fork(mounted, session)
            await mounted.text(f"{name}.pid", session=session)
            result = await mounted.table.call("session_fork", {"session": session})
            assert result.error is not None
            assert result.error.kind == "cannot_fork"
            assert f"the state of {name} cannot be copied" in result.error.message
            # The failed attempt loses nothing.
            assert await mounted.text(f"{name}.remember", session=session, word="still") == "still"
            assert await mounted.text(f"{name}.pid", session=copy)


@pytest.mark.promise("external:fork")
async def test_a_server_that_keeps_only_files_restarts_in_a_fork_on_a_copy_of_them(folder: Path) -> None:
    command = from_npm("server-filesystem", "{workspace}")
    files = server_settings(command, per_session=True, workspace=str(folder), stateful=False)
    async with mounting({"files": files}) as mounted:
        parent = await mounted.session()
        await mounted.call("files.write_file", session=parent, path="new.txt", content="before")
        copies = [await fork(mounted, parent) for _ in range(2)]
        await mounted.call("files.write_file", session=parent, path="new.txt", content="after")
        await mounted.call("files.write_file", session=copies[0], path="new.txt", content="sibling's")
        seen = [
            (await mounted.call("files.read_text_file", session=session, path="new.txt")).data["content"]
            for session in (parent, *copies)
        ]
        assert seen == ["after", "sibling's", "before"]


@pytest.mark.promise("external:sandboxed")
async def test_a_server_in_the_session_s_sandbox_sees_its_files_and_no_network(
    runtime: Runtime, folder: Path
) -> None:
    settings = server_settings(
        INSIDE, runtime="process", per_session=True, stateful=False, workspace=str(folder)
    )
    async with mounting({"bad": settings}, FilesBackend(), runtime=runtime) as mounted:
        parent = await mounted.session()
        where, names = json.loads(await mounted.text("bad.folder", session=parent))
        assert (where, names) == ("/home/agent", ["start.txt", "tools.json"])
        written = {"session": parent, "path": "seen.txt", "content": "x"}
        assert (await mounted.table.call("files_write", written)).ok
        copy = await fork(mounted, parent)
        assert "seen.txt" in json.loads(await mounted.text("bad.folder", session=copy))[1]
        assert await mounted.text("bad.remember", session=copy, word="mine") == "mine"
        assert await mounted.text("bad.remember", session=parent, word="other") == "other"
        assert "SECRET" not in await mounted.text("bad.environment", session=parent)
        failure = await mounted.failure("bad.die", session=parent)
        assert failure[0] == "unavailable"
        assert await mounted.text("bad.pid", session=parent)


@pytest.mark.promise("external:sandboxed")
async def test_a_shared_server_has_a_sandbox_of_its_own(runtime: Runtime, folder: Path) -> None:
    settings = server_settings(INSIDE, runtime="process", workspace=str(folder))
    async with mounting({"bad": settings}, runtime=runtime) as mounted:
        assert json.loads(await mounted.text("bad.folder"))[0] == "/home/agent"
        assert await mounted.text("bad.remember", word="a") == "a"


@pytest.mark.promise("external:sandboxed")
async def test_without_a_runtime_a_server_that_wants_a_sandbox_is_refused(folder: Path) -> None:
    settings = server_settings(INSIDE, runtime="process", workspace=str(folder))
    with pytest.raises(Exception, match="no runtime"):
        async with mounting({"bad": settings}):
            pass
