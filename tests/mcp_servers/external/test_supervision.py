"""Servers that end, hang, print too much or never start."""

import json
import os
import signal
from pathlib import Path

import anyio
import psutil
import pytest

from agentflow.errors import ConfigurationError, ToolFailure
from mcp_servers import ToolTable
from mcp_servers.external import ExternalBackend
from tests.mcp_servers.external._mounting import Mounting, a_tool, bad, mounting, offer, server_settings


async def killed_during_a_call(mounted: Mounting, number: int) -> tuple[str, str]:
    """Return the failure of a call whose server is killed."""
    pid = int(await mounted.text("bad.pid"))
    failures: list[tuple[str, str]] = []

    async def hang() -> None:
        failures.append(await mounted.failure("bad.hang"))

    async with anyio.create_task_group() as group:
        group.start_soon(hang)
        await anyio.wait_all_tasks_blocked()
        # An answer to a later call shows that the earlier one has arrived.
        await mounted.text("bad.pid")
        os.kill(pid, number)
    assert int(await mounted.text("bad.pid")) != pid
    return failures[0]


@pytest.mark.promise("external:restart")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_is_killed_during_a_call_fails_it_and_serves_the_next(
    tmp_path: Path, number: int
) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        kind, message = await killed_during_a_call(mounted, number)
        assert kind == "unavailable"
        assert f"signal {number}" in message


@pytest.mark.promise("external:restart")
async def test_the_failure_contains_the_status_and_the_last_output(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        kind, message = await mounted.failure("bad.die")
        assert kind == "unavailable"
        assert "status 3; it said: these are my last words" in message
        assert await mounted.text("bad.remember", word="again") == "again"


@pytest.mark.promise("external:restart")
async def test_restarts_leave_nothing_behind(tmp_path: Path) -> None:
    us = psutil.Process()
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        held: list[tuple[int, int]] = []
        for _ in range(5):
            await mounted.failure("bad.die")
            await mounted.text("bad.pid")
            held.append((us.num_fds(), len(us.children(recursive=True))))
    assert len(set(held[1:])) == 1


@pytest.mark.promise("external:restart")
async def test_calls_report_the_reason_while_a_server_cannot_be_restarted(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path), start_seconds=5)}) as mounted:
        (tmp_path / "tools.json.broken").touch()
        await mounted.failure("bad.die")
        kind, message = await mounted.failure("bad.pid")
        assert kind == "unavailable"
        while "I don't feel like it" not in message:
            kind, message = await mounted.failure("bad.pid")
            await anyio.lowlevel.checkpoint()
        (tmp_path / "tools.json.broken").unlink()
        while not (await mounted.call("bad.pid")).ok:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("external:timeout")
async def test_a_call_that_times_out_is_abandoned_and_the_server_continues(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path), timeout=5)}) as mounted:
        pid = await mounted.text("bad.pid")
        assert (await mounted.failure("bad.hang"))[0] == "timeout"
        assert await mounted.text("bad.pid") == pid


@pytest.mark.promise("external:concurrent")
async def test_calls_run_concurrently(tmp_path: Path) -> None:
    async with (
        mounting({"bad": server_settings(bad(tmp_path))}) as mounted,
        anyio.create_task_group() as group,
    ):
        for _ in range(3):
            group.start_soon(mounted.call, "bad.hang")
        assert await mounted.text("bad.pid")
        group.cancel_scope.cancel()


@pytest.mark.promise("external:pipes")
async def test_a_server_that_fills_both_output_pipes_does_not_block(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path), output_characters=2_000_000)}) as mounted:
        answers: list[str] = []

        async def ask() -> None:
            answers.append(await mounted.text("bad.flood"))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask)
        assert [len(answer) for answer in answers] == [1_000_000] * 4


@pytest.mark.promise("external:pipes")
async def test_a_large_request_succeeds_and_a_truncated_answer_fails(tmp_path: Path) -> None:
    async with mounting(
        {"bad": server_settings(bad(tmp_path, a_tool("echo")), output_characters=100)}
    ) as mounted:
        answer = await mounted.text("bad.echo", text="z" * 1_000_000)
        assert answer.startswith("echo")
        assert "characters left out" in answer
        assert len(answer) < 250


@pytest.mark.promise("external:ends")
async def test_a_server_that_ignores_its_end_is_killed_with_its_mount(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        server = psutil.Process(int(await mounted.text("bad.pid")))
        keeper = server.parent()
    assert not server.is_running()
    assert keeper is None or not keeper.is_running()


@pytest.mark.promise("external:refused")
@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": ["sh", "-c", "echo it is broken >&2; exit 4"]}, "status 4; it said: it is broken"),
        ({"command": ["sh", "-c", "exit 0"]}, "status 0"),
        ({"command": ["sleep", "600"], "start_seconds": 0.2}, "0.2 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "ConnectError"),
    ],
)
async def test_a_server_that_cannot_start_is_refused_in_one_line_or_left_out(
    server: dict[str, object], reason: str
) -> None:
    with pytest.raises(ToolFailure, match="mcp server 'x' cannot be started: ") as refusal:
        async with mounting({"x": server}):
            pass
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    async with mounting({"x": {**server, "required": False}}) as mounted:
        assert mounted.names() == []


@pytest.mark.promise("external:settings")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"servers": {"a b": {"command": ["x"]}}}, "is not a valid server name"),
        ({"servers": {"a": {}}}, "either a command or a url"),
        ({"servers": {"a": {"command": ["x"], "url": "http://x"}}}, "either a command or a url"),
        ({"servers": {"a": {"url": "ftp://x"}}}, "must start with http"),
        ({"servers": {"a": {"url": "http://x", "env": {"A": "b"}}}}, "env is for a command"),
        ({"servers": {"a": {"command": ["x"], "headers": {"A": "b"}}}}, "headers are for a url"),
        ({"servers": {"a": {"command": ["x"], "workspace": "/no/such"}}}, "no folder '/no/such'"),
        ({"servers": {"a": {"commnd": ["x"]}}}, "commnd"),
        ({"enabled_mcp_servers": ["tine"], "servers": {"time": {"command": ["x"]}}}, "'time'"),
        ({"mcp_servers_path": "/no/such/file.json"}, "no such file"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        ExternalBackend().check(settings)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.promise("external:settings")
async def test_no_client_can_name_a_command_for_its_session(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        settings = {"mcp": {"servers": {"mine": {"command": ["sh"]}}}}
        result = await mounted.table.call("session_start", {"settings": settings})
        assert result.error is not None
        assert result.error.kind == "denied"


@pytest.mark.promise("external:shared-file")
async def test_servers_are_read_from_a_shared_mcp_servers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "from outside")
    command, *arguments = bad(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    entry = {"command": command, "args": arguments, "env": {"KEY": "${THE_KEY}"}, "alwaysAllow": ["pid"]}
    servers = {"bad": entry, "other": {**entry, "disabled": True}, "third": entry}
    shared = tmp_path / "mcp.json"
    shared.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    settings = {
        "mcp_servers_path": str(shared),
        "enabled_mcp_servers": ["bad"],
        "env_overrides": {"MODE": "test", "bad": {"LEVEL": "3"}, "third": {"LEVEL": "4"}},
        "workspace_root": str(work),
    }
    async with mounting({}, settings=settings) as mounted:
        assert {name.partition(".")[0] for name in mounted.names()} == {"bad"}
        environment = json.loads(await mounted.text("bad.environment"))
        assert environment.keys() == {"PATH", "LANG", "KEY", "MODE", "LEVEL"}
        assert (environment["KEY"], environment["LEVEL"]) == ("from outside", "3")
        assert json.loads(await mounted.text("bad.folder"))[0] == str(work)


async def test_without_servers_the_backend_has_no_tools_and_starts_at_once() -> None:
    async with ToolTable([ExternalBackend()]) as table:
        assert [tool.backend for tool in table.tools if tool.backend == "mcp"] == []
        assert (await table.call("session_start", {"backends": ["mcp"]})).ok


async def test_tools_are_listed_once(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path, a_tool("first")))}) as mounted:
        assert "bad.first" in mounted.names()
        offer(tmp_path, a_tool("second"))
        assert "bad.first" in mounted.names()
