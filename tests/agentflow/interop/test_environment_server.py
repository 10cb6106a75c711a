"""Tasks with their sandboxes are served to agents of other frameworks."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.interop import EnvironmentLimits, TaskHost, open_task_host, serve_tasks, verifiers_package
from agentflow.readers import OpenEnvClient, OpenEnvFailure
from agentflow.rollouts import RolloutConfig
from tests.agentflow.interop._served import SOLUTION, TASKS, opened, served

READ: dict[str, object] = {"tool": "bash_run", "arguments": {"command": "cat numbers.txt"}}
SOLVE = {"tool": "bash_run", "arguments": {"command": SOLUTION}}


@pytest.mark.promise("interop:openenv")
async def test_an_episode_over_a_websocket_is_scored_by_the_verifier_of_its_task(tmp_path: Path) -> None:
    async with served(tmp_path) as url, OpenEnvClient(url) as environment:
        first = await environment.reset(task="sort")
        assert first.observation["text"] == TASKS[0]["instruction"]
        assert [tool["function"]["name"] for tool in first.observation["tools"]] == ["bash_run"]
        assert (first.reward, first.done) == (None, False)
        assert (await environment.step(READ)).observation["text"] == "3\n1\n2"
        failed = await environment.step({"tool": "nothing"})
        assert failed.observation["failed"]
        assert "there is no tool 'nothing'" in failed.observation["text"]
        await environment.step(SOLVE)
        last = await environment.step({"answer": "done"})
        assert (last.reward, last.done) == (1.0, True)
        assert (await environment.state())["step_count"] == 4
        with pytest.raises(OpenEnvFailure, match="the episode has ended; send reset"):
            await environment.step(READ)
        # The next sandbox is a fresh one.
        await environment.reset(seed=0)
        last = await environment.step({"answer": "done"})
        assert (last.reward, last.done) == (0.0, True)
        assert "sorted.txt" in last.observation["text"]
        assert (await environment.reset(seed=3)).observation["task"] == "capital"
        assert (await environment.step({"answer": "Paris"})).reward == 1.0


@pytest.mark.promise("interop:cleanup")
async def test_the_sandbox_of_a_client_that_leaves_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, max_sandboxes=1) as host, serve_tasks(host, token="") as url:
        async with OpenEnvClient(url) as left:
            await left.reset(task="sort")
            await left.step(SOLVE)
        # There is room for one sandbox: this waits until the other one is gone.
        async with OpenEnvClient(url) as environment:
            await environment.reset(task="sort")
            assert (await environment.step(READ)).observation["text"] == "3\n1\n2"
            assert (
                "No such file"
                in (
                    await environment.step({"tool": "bash_run", "arguments": {"command": "cat sorted.txt"}})
                ).observation["text"]
            )
            # A reset in the middle of an episode, too.
            await environment.reset(task="sort")


MESSAGES = {
    "no JSON": ("{", "INVALID_JSON", ""),
    "too deep": (
        '{"type": "reset", "data": ' + '{"a": ' * 9_000 + "1" + "}" * 9_001,
        "INVALID_JSON",
        "depth",
    ),
    "no object": ("[]", "VALIDATION_ERROR", "a message has a type"),
    "no type": ("{}", "VALIDATION_ERROR", "a message has a type"),
    "unknown type": ('{"type": "mcp"}', "UNKNOWN_TYPE", "send reset, step, state or close"),
    "step before reset": ('{"type": "step", "data": {"answer": "x"}}', "EXECUTION_ERROR", "send reset"),
    "unknown task": ('{"type": "reset", "data": {"task": "x"}}', "EXECUTION_ERROR", "there is no task 'x'"),
    "task of another type": ('{"type": "reset", "data": {"task": 1}}', "EXECUTION_ERROR", "id of a task"),
    "seed of another type": ('{"type": "reset", "data": {"seed": "x"}}', "EXECUTION_ERROR", "seed a number"),
}


@pytest.mark.promise("interop:refused")
async def test_a_wrong_message_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with (
        served(tmp_path, limits=EnvironmentLimits(calls=1)) as url,
        aiohttp.ClientSession(url) as session,
        session.ws_connect("/ws") as socket,
    ):
        for name, (message, code, reason) in MESSAGES.items():
            await socket.send_str(message)
            answer = await socket.receive_json()
            assert (answer["type"], answer["data"]["code"]) == ("error", code), name
            assert reason in answer["data"]["message"], name
        await socket.send_bytes(b"{}")
        assert (await socket.receive_json())["data"]["code"] == "INVALID_JSON"
        await socket.send_json({"type": "reset", "data": {"task": "sort"}})
        assert (await socket.receive_json())["type"] == "observation"
        actions: list[tuple[dict[str, object], str]] = [
            ({}, "an action is"),
            ({"tool": "bash_run", "arguments": []}, "an action is"),
            (READ, ""),
            (READ, "the session has made 1 calls; send an answer"),
        ]
        for action, reason in actions:
            await socket.send_json({"type": "step", "data": action})
            answer = await socket.receive_json()
            assert (answer["type"] == "error") == bool(reason)
            assert reason in answer["data"].get("message", "")
        await socket.send_json({"type": "close"})
        assert (await socket.receive()).type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}


@pytest.mark.promise("interop:sessions")
async def test_sessions_over_http_are_opened_stepped_scored_and_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as url, aiohttp.ClientSession(url) as http:

        async def ask(path: str, body: object = None, status: int = 200) -> dict[str, object]:
            async with http.post(path, data=json.dumps(body or {})) as response:
                assert response.status == status, await response.text()
                return await response.json()

        assert [task["id"] for task in (await ask("/agentflow/tasks"))["tasks"]] == ["sort", "capital"]  # type: ignore[index]
        assert (await ask("/agentflow/task", {"index": 1}))["task"]["id"] == "capital"  # type: ignore[index]
        await ask("/agentflow/task", {"index": 7}, 404)
        begun = await ask("/sessions", {"task": "sort"})
        place = f"/sessions/{begun['session']}"
        assert (await ask(f"{place}/call", READ))["text"] == "3\n1\n2"
        await ask(f"{place}/call", SOLVE)
        assert (await ask(f"{place}/submit", {"answer": ""}))["reward"] == 1.0
        assert (await ask(f"{place}/submit", {"answer": "again"}))["reward"] == 1.0
        assert "has ended" in str(await ask(f"{place}/call", READ, 409))
        async with http.delete(place) as response:
            assert response.status == 200
        assert "has ended" in str(await ask(f"{place}/call", READ, 410))
        for path, body, status, reason in (
            ("/sessions", {"task": "none"}, 409, "there is no task"),
            ("/sessions", {"task": 3}, 400, "the body can't be used"),
            ("/sessions/forged/submit", {}, 410, "has ended"),
            ("/nowhere", {}, 404, "Not Found"),
        ):
            assert reason in str(await ask(path, body, status)), path
        async with http.post("/sessions", data=io.BytesIO(b"x" * (2 << 20))) as response:
            assert response.status == 413
        for refused in ({"Host": "evil.example"}, {"Host": "["}, {"Origin": "http://evil.example"}):
            async with http.get("/health", headers=refused) as response:
                assert response.status == 403, refused
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await http.ws_connect("/ws", headers=refused)
        deep = b'{"tool": "x", "arguments": ' + b'{"a": ' * 20_000 + b"1" + b"}" * 20_001
        async with http.post("/sessions/forged/call", data=deep) as response:
            assert response.status == 400


@pytest.mark.promise("interop:sessions")
async def test_a_session_without_requests_is_closed(tmp_path: Path) -> None:
    async with (
        served(tmp_path, limits=EnvironmentLimits(idle_seconds=0.05)) as url,
        aiohttp.ClientSession(url) as http,
    ):
        async with http.post("/sessions", json={"task": "capital"}) as response:
            place = f"/sessions/{(await response.json())['session']}"
        status = 200
        while status != 410:
            await anyio.sleep(0.1)
            async with http.post(f"{place}/call", json=READ) as response:
                status = response.status


async def until_waiting(host: TaskHost, number: int) -> None:
    """Wait until so many sessions wait for a sandbox."""
    while host.waiting != number:
        await anyio.lowlevel.checkpoint()


async def opened_session(http: aiohttp.ClientSession) -> str:
    """Open a session and return its path."""
    async with http.post("/sessions", json={"task": "capital"}) as response:
        assert response.status == 200, await response.text()
        return f"/sessions/{(await response.json())['session']}"


@pytest.mark.promise("interop:waiting")
async def test_sessions_get_a_sandbox_in_order_of_arrival_without_those_whose_client_has_left(
    tmp_path: Path,
) -> None:
    order: list[int] = []
    async with (
        opened(tmp_path, max_sandboxes=1) as host,
        serve_tasks(host, token="") as url,
        aiohttp.ClientSession(url) as http,
        anyio.create_task_group() as group,
    ):
        first = await opened_session(http)

        async def play(number: int, scope: anyio.CancelScope) -> None:
            with scope:
                path = await opened_session(http)
                order.append(number)
                # The sandbox is free once there is an answer; the session need not be closed.
                async with http.post(f"{path}/submit", json={"answer": "Paris"}) as response:
                    assert (await response.json())["reward"] == 1.0

        scopes = [anyio.CancelScope() for _ in range(4)]
        for number, scope in enumerate(scopes):
            group.start_soon(play, number, scope)
            await until_waiting(host, number + 1)
        scopes[1].cancel()
        await until_waiting(host, 3)
        async with http.ws_connect("/ws") as left:
            await left.send_json({"type": "reset", "data": {}})
            await until_waiting(host, 4)
        await until_waiting(host, 3)
        await http.delete(first)
    assert order == [0, 2, 3]


@pytest.mark.promise("interop:waiting")
async def test_every_one_of_many_clients_gets_a_sandbox_or_a_refusal(tmp_path: Path) -> None:
    answers: Counter[str] = Counter()
    async with (
        opened(tmp_path, max_sandboxes=2) as host,
        serve_tasks(host, token="", limits=EnvironmentLimits(wait_seconds=0.2)) as url,
        aiohttp.ClientSession(url) as http,
        AsyncExitStack() as stack,
    ):

        async def post() -> None:
            async with http.post("/sessions", json={"task": "capital"}) as response:
                assert ("Retry-After" in response.headers) == (response.status == 503)
                answers[(await response.json()).get("error", "opened")] += 1

        async def reset() -> None:
            socket = await stack.enter_async_context(http.ws_connect("/ws"))
            await socket.send_json({"type": "reset", "data": {"task": "capital"}})
            data = (await socket.receive_json())["data"]
            assert data.get("code", "CAPACITY_REACHED") == "CAPACITY_REACHED"
            answers[data.get("message", "opened")] += 1

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(post)
                group.start_soon(reset)
    assert answers == {"opened": 2, "no sandbox became free within 0.2 seconds; try again later": 18}


@pytest.mark.promise("interop:waiting")
async def test_a_session_is_refused_at_once_if_too_many_wait_for_a_sandbox(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, max_sandboxes=1) as host,
        serve_tasks(host, token="", limits=EnvironmentLimits(waiting=1)) as url,
        aiohttp.ClientSession(url) as http,
        anyio.create_task_group() as group,
    ):
        first = await opened_session(http)
        group.start_soon(opened_session, http)
        await until_waiting(host, 1)
        async with http.post("/sessions", json={"task": "capital"}) as response:
            assert response.status == 503
            assert "1 sessions wait" in (await response.json())["error"]
        await http.delete(first)


@pytest.mark.promise("interop:openenv")
async def test_pings_are_answered_during_a_step(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as url,
        aiohttp.ClientSession(url) as session,
        session.ws_connect("/ws", autoping=False) as socket,
    ):
        await socket.send_json({"type": "reset", "data": {"task": "capital"}})
        assert (await socket.receive_json())["type"] == "observation"
        step = {"tool": "bash_run", "arguments": {"command": "sleep 0.5"}}
        await socket.send_json({"type": "step", "data": step})
        await socket.ping()
        types = [(await socket.receive()).type for _ in range(2)]
        assert types == [aiohttp.WSMsgType.PONG, aiohttp.WSMsgType.TEXT]


@pytest.mark.promise("interop:refused")
async def test_a_token_is_asked_for_wherever_others_can_connect(tmp_path: Path) -> None:
    async with served(tmp_path, token="secret") as url:
        async with OpenEnvClient(url, token="secret") as environment:
            await environment.reset(task="capital")
        for token in ("", "wrong", "sécret"):
            with pytest.raises(OpenEnvFailure, match=r"can't be reached: .*401"):
                async with OpenEnvClient(url, token=token):
                    pass
    async with opened(tmp_path) as host:
        with pytest.raises(
            ConfigurationError, match=r"0\.0\.0\.0 is reachable from other machines; set a token"
        ):
            async with serve_tasks(host, address="0.0.0.0", token=""):
                pass


async def test_tasks_that_need_a_judge_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "1", "question": "Why?", "answer": "So."}\n')
    given = {"data_path": str(tmp_path / "tasks.jsonl"), "evaluation_metric": "llm_judgement"}
    with pytest.raises(
        ConfigurationError, match="llm_judgement needs a judge model, and tasks are served without"
    ):
        async with open_task_host(RolloutConfig.model_validate(given)):
            pass


@contextmanager
def running(folder: Path, *words: str) -> Generator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Yield a program that serves a task, and what it printed."""
    file = folder / "tasks.jsonl"
    file.write_text(json.dumps(TASKS[1]) + "\n")
    command = [
        sys.executable,
        "-m",
        "agentflow.cli",
        "serve-env",
        "--data",
        str(file),
        "--port",
        "0",
        "--json",
    ]
    variables = {name: value for name, value in os.environ.items() if name != "AGENTFLOW_ENV_TOKEN"}
    with subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=folder,
        env=variables | {"XDG_STATE_HOME": str(folder)},
    ) as program:
        assert program.stdout is not None
        try:
            yield program, json.loads(program.stdout.readline())
        finally:
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 130


async def statuses(url: str, token: str) -> set[int]:
    """Return the statuses of requests with a token, over HTTP and over a WebSocket."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(url, headers=headers) as http:
        found: set[int] = set()
        for path in ("/agentflow/tasks", "/sessions"):
            async with http.post(path) as response:
                found.add(response.status)
        try:
            async with http.ws_connect("/ws"):
                found.add(200)
        except aiohttp.WSServerHandshakeError as error:
            found.add(error.status)
        return found


@pytest.mark.promise("interop:command")
def test_the_command_makes_a_token_of_its_own_and_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    with running(tmp_path) as (program, started):
        assert (started["tasks"], started["pid"]) == (1, program.pid)
        assert started["url"].startswith("http://127.0.0.1:")
        file = Path(started["token_file"])
        assert file.parent == tmp_path / "agentflow"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for token, expected in (("", 401), ("wrong", 401), (file.read_text().strip(), 200)):
            assert anyio.run(statuses, started["url"], token) == {expected}
    assert not file.exists()


@pytest.mark.promise("interop:command")
@pytest.mark.parametrize(("word", "without"), [("secret", 401), ("none", 200)])
def test_the_command_takes_a_token_or_none(word: str, without: int, tmp_path: Path) -> None:
    with running(tmp_path, "--token", word) as (_, started):
        assert "token_file" not in started
        assert anyio.run(statuses, started["url"], "") == {without}
        assert anyio.run(statuses, started["url"], word) == {200}


@pytest.mark.promise("interop:command")
def test_a_wrong_command_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, reason in (
        (["--data", "none.jsonl"], "none.jsonl"),
        (["--idle", "0"], "--idle: 0 is no time"),
        (["--port", "70000"], "127.0.0.1:70000 can't be used"),
        (["--host", "0.0.0.0", "--port", "0", "--token", "none"], "set a token"),
        (["--host", "nowhere.invalid", "--port", "0"], "nowhere.invalid"),
    ):
        assert main(["serve-env", *words]) == 2, words
        said = capsys.readouterr().err
        assert reason in said
        assert said.count("\n") == 1
    assert main(["serve-env", "--verifiers-package"]) == 0
    assert capsys.readouterr().out.strip() == str(verifiers_package())
    assert {path.name for path in verifiers_package().iterdir()} >= {"pyproject.toml", "agentflow_tasks"}
