"""The tool table on the real runtime: one instance per session, started on first use, stopped with the session."""

import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Annotated

import anyio
import pytest
from pydantic import Field

from agentflow.errors import ErrorKind, InstanceGone, IsolationUnavailable, ToolFailure
from mcp_servers import Backend, Session, ToolTable, tool
from mcp_servers.core._runtimes import RuntimeHost
from runtimes import Runtime
from tests.mcp_servers.core.test_table import failure, started


class Shell(Backend):
    """Runs commands and nothing else."""

    name = "shell"
    description = "Runs."

    @tool()
    async def run(
        self, session: Session, command: Annotated[str, Field(description="What to run.")]
    ) -> dict[str, object]:
        """Run a command."""
        instance = await session.instance()
        return {"stdout": (await instance.run("bash", command)).stdout}


class Editor(Backend):
    """Writes files and nothing else."""

    name = "editor"
    description = "Writes."

    @tool()
    async def write(
        self, session: Session, text: Annotated[str, Field(description="What to write.")]
    ) -> dict[str, object]:
        """Write a file."""
        instance = await session.instance()
        await instance.write("note", text.encode())
        return {}


@pytest.fixture
async def table() -> AsyncGenerator[ToolTable]:
    """Two backends on one runtime."""
    host = RuntimeHost()
    async with anyio.create_task_group() as group:
        group.start_soon(host.run)
        async with ToolTable([Shell(), Editor()], runtime=host.get) as table:
            yield table
        host.close()


@pytest.mark.promise("mcp:session:instance")
async def test_the_backends_of_a_session_share_one_instance_and_sessions_do_not(table: ToolTable) -> None:
    first, second = await started(table), await started(table)
    await table.call("editor_write", {"session": first, "text": "hello"})
    assert (await table.call("shell_run", {"session": first, "command": "cat note"})).data == {
        "stdout": "hello"
    }
    assert (await table.call("shell_run", {"session": second, "command": "ls"})).data == {"stdout": ""}


async def test_a_fork_has_the_files_and_the_shell_of_its_parent(table: ToolTable) -> None:
    parent = await started(table)
    await table.call("shell_run", {"session": parent, "command": "x=5; echo one > note"})
    fork = (await table.call("session_fork", {"session": parent})).data["session"]
    await table.call("shell_run", {"session": parent, "command": "x=6; echo two > note"})
    looks = "cat note; echo $x"
    assert (await table.call("shell_run", {"session": fork, "command": looks})).data == {"stdout": "one\n5\n"}
    await table.call("session_end", {"session": parent})
    assert (await table.call("shell_run", {"session": fork, "command": looks})).data == {"stdout": "one\n5\n"}


class Shelves(Backend):
    """Mounts a folder that the settings name."""

    name = "shelves"
    description = "Shows."

    def mounts(
        self, settings: Mapping[str, object], session_settings: Mapping[str, object]
    ) -> Mapping[str, str]:
        if session_settings:
            raise ToolFailure(ErrorKind.DENIED, f"{session_settings['folder']} is not for you.")
        return {"/shelf": str(settings["folder"])} if settings else {}


@pytest.mark.promise("mcp:session:mounts")
async def test_a_backend_names_the_folders_mounted_in_an_instance(tmp_path: Path) -> None:
    (tmp_path / "book").write_text("words", encoding="utf-8")
    os.chmod(tmp_path, 0o755)
    settings = {"shelves": {"folder": str(tmp_path)}}
    host = RuntimeHost()
    async with anyio.create_task_group() as group:
        group.start_soon(host.run)
        async with ToolTable([Shell(), Shelves()], runtime=host.get, settings=settings) as table:
            handle = await started(table)
            look = {"session": handle, "command": "cat /shelf/book; echo x > /shelf/book || echo no"}
            assert (await table.call("shell_run", look)).data == {"stdout": "wordsno\n"}
            handle = (await table.call("session_fork", {"session": handle})).data["session"]
            seen = await table.call("shell_run", {"session": handle, "command": "ls /shelf"})
            assert seen.data == {"stdout": "book\n"}
        async with ToolTable([Shell(), Shelves()], runtime=host.get) as table:
            session_settings = {"shelves": {"folder": "/etc"}}
            handle = str((await table.call("session_start", {"settings": session_settings})).data["session"])
            result = await table.call("shell_run", {"session": handle, "command": "ls /shelf"})
            assert failure(result) == (ErrorKind.DENIED, "/etc is not for you.")
        host.close()


@pytest.mark.promise("mcp:session:lost")
async def test_a_session_whose_instance_has_died_is_ended_and_says_so(table: ToolTable) -> None:
    handle = await started(table)
    await table.call("shell_run", {"session": handle, "command": "true"})
    await (await table.sessions.find(handle, "local").instance()).stop()
    for _ in range(2):
        result = await table.call("shell_run", {"session": handle, "command": "true"})
        assert failure(result)[0] is ErrorKind.SESSION_NOT_FOUND
    assert len(table.sessions) == 0


async def test_cancelling_a_call_kills_its_programs_and_the_session_continues(table: ToolTable) -> None:
    handle = await started(table)
    with anyio.fail_after(60):
        result = await table.call("shell_run", {"session": handle, "command": "sleep 1000"}, timeout=0.2)
        assert failure(result)[0] is ErrorKind.TIMEOUT
        listed = await table.call("shell_run", {"session": handle, "command": "pgrep sleep || echo none"})
    assert listed.data == {"stdout": "none\n"}


async def test_missing_isolation_is_reported_by_every_call_and_the_server_continues() -> None:
    def unable() -> Runtime:
        raise IsolationUnavailable("no namespaces here: allow them")

    host = RuntimeHost(unable)
    async with anyio.create_task_group() as group:
        group.start_soon(host.run)
        async with ToolTable([Shell()], runtime=host.get) as table:
            handle = await started(table)
            for _ in range(2):
                result = await table.call("shell_run", {"session": handle, "command": "true"})
                assert failure(result) == (
                    ErrorKind.UNAVAILABLE,
                    "shell_run: no namespaces here: allow them",
                )
        host.close()


async def test_an_unused_runtime_is_never_started() -> None:
    def never() -> Runtime:
        raise NotImplementedError

    host = RuntimeHost(never)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(host.run)
            host.close()


async def test_an_instance_started_after_its_session_ended_is_stopped(table: ToolTable) -> None:
    early = await table.sessions.start("local")
    instance = await early.instance()
    late = await table.sessions.start("local")
    await table.sessions.end(late)
    with pytest.raises(ToolFailure, match="has ended"):
        await late.adopt(instance)
    with pytest.raises(InstanceGone):
        await instance.run("bash", "true")
