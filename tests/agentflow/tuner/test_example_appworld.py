"""The AppWorld example, with a stand-in for the server of AppWorld, which runs in an environment of its own."""

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from aiohttp import web

from agentflow.errors import ConfigurationError
from agentflow.trace import Task
from examples.appworld.run import code_in, main, make_solve, read_tasks
from examples.appworld.worlds import AppWorlds, WorldFailure

if TYPE_CHECKING:
    from agentflow.gateway import EpisodeOutcome

SERVER = '''#!{python}
"""The interface of `appworld serve environment`: one world, which ends when `complete_task` is called."""
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port = int(sys.argv[sys.argv.index("--port") + 1])
assert sys.argv[1:3] == ["serve", "environment"] and "--root" in sys.argv
world = {{}}

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, {{"message": "Welcome"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.path[1:]
        if operation == "initialize":
            world.clear()
            world.update(task_id=body["task_id"], code=[])
            person = dict(first_name="Ann", last_name="Lee", email="a@example.com", phone_number="1")
            return self.reply(200, {{"output": {{"instruction": "Say " + body["task_id"], "supervisor": person}}}})
        if body["task_id"] != world.get("task_id"):
            return self.reply(500, {{"detail": "another world"}})
        if operation == "execute":
            if body["code"] == "die":
                raise SystemExit
            world["code"].append(body["code"])
            output = "ran " + body["code"]
        elif operation == "task_completed":
            output = any("complete_task" in code for code in world["code"])
        elif operation == "evaluate":
            right = any(world["task_id"] in code for code in world["code"])
            output = dict(success=right, num_tests=2, passes=[1, 1] if right else [1], failures=[] if right else [1])
        else:
            output = None
        self.reply(200, {{"output": output}})

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


class Address:
    """A policy at an address."""

    api_key = "key"
    model = "scripted"

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of data with two tasks."""
    (tmp_path / "data/datasets").mkdir(parents=True)
    (tmp_path / "data/datasets/train.txt").write_text("one_1\ntwo_2\n")
    return tmp_path


def program(folder: Path, text: str = SERVER) -> Path:
    """Write a stand-in for the command `appworld`."""
    path = folder / "appworld"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o700)
    return path


@asynccontextmanager
async def scripted(answers: Sequence[str]) -> AsyncGenerator[tuple[Address, list[list[dict[str, str]]]]]:
    """Serve a model that says these answers; yield its address, and the conversations that it was sent."""
    asked: list[list[dict[str, str]]] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append((await request.json())["messages"])
        message = {"role": "assistant", "content": answers[(len(asked) - 1) % len(answers)]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "scripted"}
        return web.json_response({**head, "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield Address(f"http://{host}:{port}/v1"), asked
    finally:
        await runner.cleanup()


@pytest.mark.promise("examples:appworld")
async def test_an_agent_plays_worlds_of_several_servers_and_is_rewarded_by_their_tests(root: Path) -> None:
    tasks = read_tasks(root, "train")
    assert [task.id for task in tasks] == ["one_1", "two_2"]
    answers = ["```python\nlook()\n```", "Done:\n```python\ncomplete_task('one_1')\n```"]
    outcomes: dict[str, EpisodeOutcome] = {}
    async with AppWorlds(program(root), root, count=2) as worlds:

        async def one(task: Task) -> None:
            async with scripted(answers) as (policy, asked):
                outcomes[task.id] = await make_solve(worlds)(task, policy)
            assert "Ann Lee" in asked[0][0]["content"]
            assert f"Task: Say {task.id}" in asked[0][0]["content"]
            assert asked[1][2]["content"] == "ran look()\n"
            assert len(asked) == 2

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(one, task)
    assert outcomes["one_1"].reward == 1.0
    assert outcomes["two_2"].reward == 0.0
    assert outcomes["two_2"].metrics == {"passed_tests": 0.5}


@pytest.mark.promise("examples:appworld")
async def test_a_server_that_ended_is_replaced(root: Path) -> None:
    async with AppWorlds(program(root), root, count=1) as worlds:
        with pytest.raises(WorldFailure, match="execute"):
            async with worlds.open("one_1") as world:
                await world.execute("die")
        async with worlds.open("two_2") as world:
            assert world.instruction == "Say two_2"
        with pytest.raises(WorldFailure, match="another world"):
            async with worlds.open("one_1") as world:
                world.task_id = "two_2"
                await world.completed()


@pytest.mark.promise("examples:appworld")
async def test_a_server_that_does_not_start_is_reported_with_its_last_line(root: Path) -> None:
    broken = program(root, "#!/bin/sh\necho Did not find any ./data\nexit 1\n")
    async with AppWorlds(broken, root, count=1) as worlds:
        with pytest.raises(ConfigurationError, match="Did not find any"):
            async with worlds.open("one_1"):
                pass


@pytest.mark.promise("examples:appworld")
def test_a_missing_program_or_missing_data_is_refused_in_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="there is no such program"):
        AppWorlds(root / "nothing", root)
    with pytest.raises(ConfigurationError, match="download data"):
        AppWorlds(program(root), tmp_path / "elsewhere")
    assert main(["--program", os.devnull, "--root", str(tmp_path / "elsewhere")]) == 1
    assert "can't be read" in capsys.readouterr().err


@pytest.mark.promise("examples:appworld")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("So:\n```\na = 1\n```\nand\n```python\nb\n```", "a = 1\n"),
        ("print(1)", "print(1)"),
        ("```python\nprint(1)", "```python\nprint(1)"),
        ("", ""),
    ],
)
def test_the_code_of_an_answer_is_its_first_fenced_block(answer: str, code: str) -> None:
    assert code_in(answer) == code
