"""Episodes in both directions with the real packages of OpenEnv and verifiers, each in its own environment."""

import fcntl
import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from agentflow.gateway import EpisodeOffer, GatewayClient
from agentflow.interop import solve_openenv, solve_verifiers
from agentflow.readers import OpenEnvClient
from tests.agentflow.gateway.test_swarm_routes import OWNER_TOKEN, gateway
from tests.agentflow.interop._served import SOLUTION, served
from tests.agentflow.interop.test_environment_agents import Policy, tasks_of
from tests.agentflow.tasks._sight import serve_model
from tests.behaviour._tree import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.promise("interop:real")]

DRIVERS = Path(__file__).parent / "_drivers"


def python_of(name: str) -> Path:
    """Return the Python of an environment; create it if it is missing."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / f"build/{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", f".venv-{name}/.stamp"], cwd=ROOT, check=True)
    return ROOT / f".venv-{name}/bin/python"


async def model(request: web.Request) -> web.Response:
    """Answer as a model that sorts, then reports, in pieces or at once."""
    assert request.headers["Authorization"] == "Bearer episode-key"
    body = await request.json()
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if body["messages"][-1]["role"] == "tool":
        message["content"] = "done"
    elif body.get("tools"):
        call = {"name": "bash_run", "arguments": json.dumps({"command": SOLUTION})}
        message["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": call}]
    else:
        message["content"] = '{"message": "hello"}'
    finish = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    whole = {"id": "x", "created": 1, "model": "policy"}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({**whole, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**whole, "object": "chat.completion.chunk"}
    events: list[dict[str, Any]] = [
        {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage},
    ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return web.Response(text=text, content_type="text/event-stream")


async def test_the_client_of_openenv_plays_a_task(tmp_path: Path) -> None:
    python = python_of("openenv")
    async with served(tmp_path, token="secret") as url:
        done = await anyio.run_process(
            [str(python), str(DRIVERS / "openenv_client.py"), url, "secret", SOLUTION]
        )
    assert json.loads(done.stdout) == {
        "tools": ["bash_run"],
        "failed": True,
        "reward": 1.0,
        "done": True,
        "steps": 3,
        "error": True,
    }


@asynccontextmanager
async def echo() -> AsyncGenerator[str]:
    """Serve an environment made with OpenEnv's own `create_fastapi_app`."""
    command = [str(python_of("openenv")), str(DRIVERS / "openenv_server.py")]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            line += await process.stdout.receive()
        try:
            yield line.decode().strip()
        finally:
            process.kill()


async def test_an_environment_of_openenv_is_played(tmp_path: Path) -> None:
    async with echo() as url, serve_model(model) as policy:
        async with OpenEnvClient(url) as environment:
            first = await environment.reset(seed=3)
            assert (first.observation["message"], first.done) == ("seed 3", False)
            assert (await environment.step({"message": "ab"})).reward == 2.0
            assert (await environment.state())["step_count"] == 1
        (task,) = await tasks_of(f"openenv:{url}?size=1&seed=3")
        outcome = await solve_openenv(task, Policy(policy))
        assert (outcome.reward, outcome.metrics) == (15.0, {"steps": 3.0})


async def test_verifiers_plays_a_task_in_our_sandbox(tmp_path: Path) -> None:
    """Both directions at once: our tasks as a verifiers environment, which is read and played as tasks."""
    python = python_of("verifiers")
    async with served(tmp_path) as url, serve_model(model) as policy:
        (sort, capital) = await tasks_of(f'verifiers:agentflow-tasks?python={python}&task={{"url": "{url}"}}')
        assert (sort.id, capital.question) == ("0/sort", "What is the capital of France?")
        outcome = await solve_verifiers(sort, Policy(policy))
        assert (outcome.failure, outcome.reward, outcome.answer) == ("", 1.0, "done")
        assert outcome.metrics["turns"] == 2.0
        # It calls a tool, and answers "done": there is no capital of that name.
        assert (await solve_verifiers(capital, Policy(policy))).reward == 0.0


async def test_verifiers_plays_through_the_gateway_by_the_key_of_its_episode(tmp_path: Path) -> None:
    python = python_of("verifiers")
    async with (
        served(tmp_path) as url,
        gateway(tmp_path / "gateway") as (registry, address),
        GatewayClient(address, OWNER_TOKEN) as client,
    ):
        source = f'verifiers:agentflow-tasks?python={python}&start=1&task={{"url": "{url}"}}'
        (capital,) = await tasks_of(source)
        await registry.slots.offer([EpisodeOffer(id="1/0", group="1", task=capital, seed="s")])
        begun = await client.begin(wait=5)
        assert begun is not None
        policy = Policy(begun.base_url, begun.keys[""], begun.model)
        outcome = await solve_verifiers(begun.task, policy)
        # The model repeats the question.
        assert (outcome.failure, outcome.reward) == ("", 0.0)
        receipt = await client.end(begun, outcome)
        (call,) = await client.calls("1/0", 1)
        assert receipt.calls == 1
        assert call.trained
        assert call.delivered
        assert call.tokens is not None
        assert call.tokens.sampled
