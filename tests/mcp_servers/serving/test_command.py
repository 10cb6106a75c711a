"""The command line."""

import logging
import signal
import stat
from collections.abc import Generator
from pathlib import Path

import anyio
import httpx2
import pytest

from mcp_servers import BACKENDS
from mcp_servers.__main__ import main
from mcp_servers.serving import token_path
from tests.mcp_servers._program import COUNTER, ROOT, Program, program
from tests.mcp_servers._serving import connected, post, request

ECHO = request("tools/call", {"name": "counter_echo", "arguments": {"text": "x"}})


@pytest.fixture
def own_logging() -> Generator[None]:
    """Restore the logging that the program sets up for its whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def address(running: Program) -> str:
    """Return the URL that the server prints."""
    while "serving" not in (line := await running.next_line()):
        continue
    return line.split()[-1]


NO_MODULE = "there is no such module next to the settings file or in the working directory"


@pytest.mark.promise("mcp:command:unknown")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bsh"], "key=value: backends.bsh is unknown; did you mean bash?"),
        ([], f"name at least one backend to serve. There are: {', '.join(sorted(BACKENDS))}."),
        (
            ["no.such.module:Thing"],
            f"backend 'no.such.module:Thing' can't be loaded: no.such.module: {NO_MODULE}, and none is installed",
        ),
        (["pathlib:Path"], "backend 'pathlib:Path': pathlib:Path does not create an mcp_servers.Backend"),
        ([COUNTER, "warmup=[bash]"], f"warmup: 'bash' is not served. There are: {COUNTER}."),
        ([COUNTER, "sesions.most=3"], "key=value: sesions is unknown; did you mean sessions?"),
        ([COUNTER, "--config", "no-such-file.yaml"], "no-such-file.yaml: no such file"),
        (
            [COUNTER, "--http", "0.0.0.0:0", "--token", "none"],
            "host '0.0.0.0' is reachable from other machines: set a token, or bind 127.0.0.1",
        ),
    ],
)
@pytest.mark.usefixtures("own_logging")
def test_invalid_arguments_are_one_line_and_status_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"mcp_servers: {expected}\n"
    assert captured.out == ""


@pytest.mark.promise("mcp:workers:settings")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--workers", "0"], "key=value: workers"),
        (["--workers", "two"], "key=value: workers"),
        (["--workers", "2"], "workers need HTTP: add --http, or remove workers"),
    ],
)
@pytest.mark.usefixtures("own_logging")
def test_invalid_worker_settings_are_refused_in_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([COUNTER, *words]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"mcp_servers: {expected}")
    assert message.count("\n") == 1


@pytest.mark.promise("mcp:command:token")
async def test_a_server_without_a_token_generates_one_that_only_this_user_can_read(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with program(
            COUNTER, "--http", "127.0.0.1:0", environment={"XDG_STATE_HOME": str(tmp_path)}
        ) as running:
            line = await running.next_line()
            path = Path(line.split()[-1])
            url = await address(running)
            assert path == token_path(httpx2.URL(url).port or 0, {"XDG_STATE_HOME": str(tmp_path)})
            token = secret_of(path)
            assert len(token) >= 32
            async with connected(url, token) as client:
                assert not (await client.call_tool("counter_echo", {"text": "x"})).is_error
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0
            assert list(path.parent.iterdir()) == []


def secret_of(path: Path) -> str:
    """Return the content of a file that only its owner can read."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    return path.read_text(encoding="utf-8").strip()


async def test_a_token_may_be_set_or_disabled() -> None:
    with anyio.fail_after(60):
        async with httpx2.AsyncClient() as http:
            async with program(COUNTER, "--http", "127.0.0.1:0", "--token", "none") as running:
                assert (await post(http, await address(running), ECHO)).status_code == 200
            environment = {"AGENTFLOW_SERVER_TOKEN": "given"}
            async with program(COUNTER, "--http", "127.0.0.1:0", environment=environment) as running:
                url = await address(running)
                assert (await post(http, url, ECHO)).status_code == 401
                assert (await post(http, url, ECHO, {"Authorization": "Bearer given"})).status_code == 200


@pytest.mark.promise("secrets:arguments")
async def test_a_token_on_the_command_line_is_not_in_the_list_of_processes() -> None:
    with anyio.fail_after(60):
        async with (
            program(COUNTER, "--http", "127.0.0.1:0", "--token", "s3cret-token") as running,
            httpx2.AsyncClient() as http,
        ):
            url = await address(running)
            assert (await post(http, url, ECHO, {"Authorization": "Bearer s3cret-token"})).status_code == 200
            listed = await anyio.Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
            assert b"--token" in listed and b"s3cret" not in listed


@pytest.mark.promise("mcp:command:config")
async def test_the_script_serves_a_configuration_and_options_override_it(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        f"host: 127.0.0.1\nport: 1\ntokens:\n  alice: ${{ALICE_TOKEN}}\nbackends:\n  {COUNTER}:\n    start: 5\n",
        encoding="utf-8",
    )
    script = [str(ROOT / "sandbox-server.sh"), "--config", str(config), "--host", "127.0.0.1", "--port", "0"]
    with anyio.fail_after(60):
        async with program(command=script, environment={"ALICE_TOKEN": "secret-of-alice"}) as running:
            url = await address(running)
            async with connected(url, "secret-of-alice") as client:
                started = await client.call_tool("session_start", {})
                assert started.structured_content is not None
                handle = started.structured_content["session"]
                added = await client.call_tool("counter_add", {"session": handle})
                assert added.structured_content == {"count": 6}
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0


@pytest.mark.promise("mcp:command:secrets")
async def test_server_output_contains_no_token_handle_or_argument() -> None:
    with anyio.fail_after(60):
        async with program(
            COUNTER,
            "--http",
            "127.0.0.1:0",
            "--log-level",
            "debug",
            environment={"AGENTFLOW_SERVER_TOKEN": "s3cr3t"},
        ) as running:
            url = await address(running)
            async with connected(url, "s3cr3t", "legacy") as client:
                started = await client.call_tool("session_start", {})
                assert started.structured_content is not None
                handle = started.structured_content["session"]
                await client.call_tool("counter_add", {"session": handle})
                await client.call_tool("counter_echo", {"text": "pr1vate"})
            async with httpx2.AsyncClient() as http:
                await post(http, url, ECHO, {"Authorization": "Bearer wr0ng"})
            running.process.send_signal(signal.SIGTERM)
            await running.process.wait()
            output = await running.rest()
    for secret in ("s3cr3t", "wr0ng", "pr1vate", handle):
        assert secret not in output
