"""Environments of other frameworks are read as tasks and played by a policy."""

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from aiohttp import WSMsgType, web

from agentflow.errors import ConfigurationError
from agentflow.gateway import EpisodeOffer, EpisodeOutcome, GatewayClient
from agentflow.interop import ActionFailure, action_of, solve_openenv, solve_verifiers
from agentflow.readers import OpenEnvClient, OpenEnvFailure, VerifiersFailure, play_verifiers, read_tasks
from agentflow.testing import fake_endpoint
from agentflow.trace import Task
from agentflow.tuner import atune
from tests.agentflow.gateway.test_swarm_routes import OWNER_TOKEN, gateway
from tests.agentflow.interop._served import SOLUTION, served
from tests.agentflow.tasks._sight import serve_model


class Policy(NamedTuple):
    base_url: str
    api_key: str = "episode-key"
    model: str = "policy"


async def tasks_of(source: str) -> list[Task]:
    """Return the tasks of a source, read in a thread: the environment may be served by this one."""
    return await anyio.to_thread.run_sync(lambda: list(read_tasks(source)))


def completion(message: dict[str, Any]) -> web.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": "", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return web.json_response(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    )


async def with_tools(request: web.Request) -> web.Response:
    """Answer as a model that sorts, then reports."""
    assert request.headers["Authorization"] == "Bearer episode-key"
    body = await request.json()
    assert [tool["function"]["name"] for tool in body["tools"]] == ["bash_run"]
    if body["messages"][-1]["role"] == "tool":
        return completion({"content": "done"})
    call = {"name": "bash_run", "arguments": json.dumps({"command": SOLUTION})}
    return completion({"tool_calls": [{"id": "call_1", "type": "function", "function": call}]})


@pytest.mark.promise("interop:openenv_source")
async def test_tasks_of_an_environment_with_tools_are_read_and_played(tmp_path: Path) -> None:
    async with served(tmp_path) as url, serve_model(with_tools) as model:
        sort, capital = await tasks_of(f"openenv:{url}")
        assert (sort.id, capital.question) == ("sort", "What is the capital of France?")
        outcome = await solve_openenv(sort, Policy(model))
        assert outcome == EpisodeOutcome(reward=1.0, answer="done", metrics={"steps": 2.0})
        seeds = await tasks_of(f"openenv:{url}?size=2&seed=4")
        assert [task.metadata["openenv"]["reset"] for task in seeds] == [{"seed": 4}, {"seed": 5}]
        assert (await solve_openenv(seeds[0], Policy(model))).reward == 1.0


SCHEMA = {"action": {"properties": {"move": {"type": "string"}}, "required": ["move"]}}


@asynccontextmanager
async def environment_of(
    socket: Callable[[web.Request], Awaitable[web.WebSocketResponse]],
) -> AsyncGenerator[str]:
    """Serve an environment of another author."""

    async def schema(request: web.Request) -> web.Response:
        return web.json_response(SCHEMA)

    app = web.Application()
    app.add_routes([web.get("/ws", socket), web.get("/schema", schema)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def corridor(answer: Callable[[dict[str, Any]], str | None]) -> AbstractAsyncContextManager[str]:
    """Serve an environment that answers each message; `None` closes the connection."""

    async def socket(request: web.Request) -> web.WebSocketResponse:
        opened = web.WebSocketResponse()
        await opened.prepare(request)
        async for message in opened:
            said = answer(json.loads(message.data))
            if said is None:
                break
            await opened.send_str(said)
        await opened.close()
        return opened

    return environment_of(socket)


def observed(place: int, reward: float | None, *, done: bool = False) -> str:
    data = {"observation": {"place": place}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


@pytest.mark.promise("interop:openenv_source")
async def test_actions_of_other_environments_are_text_and_rewards_are_added(tmp_path: Path) -> None:
    places: list[int] = []

    def answer(message: dict[str, Any]) -> str:
        if message["type"] == "reset":
            places[:] = [message["data"]["seed"]]
            return observed(places[-1], None)
        assert message == {"type": "step", "data": {"move": "right"}}
        places.append(places[-1] + 1)
        return observed(places[-1], 0.5, done=len(places) == 4)

    async def says(request: web.Request) -> web.Response:
        return completion({"content": "right"})

    async with corridor(answer) as url, serve_model(says) as model:
        (task,) = await tasks_of(f"openenv:{url}?size=1&seed=7")
        outcome = await solve_openenv(task, Policy(model))
        assert (outcome.reward, outcome.metrics, places) == (1.5, {"steps": 3.0}, [7, 8, 9, 10])
        with pytest.raises(ConfigurationError, match="lists no tasks; set size to play by seeds"):
            await tasks_of(f"openenv:{url}")


@pytest.mark.promise("interop:openenv_source")
async def test_every_step_through_the_gateway_has_its_tokens(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = []

    def answer(message: dict[str, Any]) -> str:
        if message["type"] == "reset":
            return observed(0, None)
        steps.append(message["data"])
        return observed(len(steps), 1.0, done=len(steps) == 2)

    async with (
        corridor(answer) as url,
        gateway(tmp_path) as (registry, address),
        GatewayClient(address, OWNER_TOKEN) as client,
    ):
        (task,) = await tasks_of(f"openenv:{url}?size=1&seed=7")
        await registry.slots.offer([EpisodeOffer(id="1/0", group="1", task=task, seed="s")])
        begun = await client.begin(wait=5)
        assert begun is not None
        policy = Policy(begun.base_url, begun.keys[""], begun.model)
        receipt = await client.end(begun, await solve_openenv(begun.task, policy))
        assert receipt.calls == len(steps) == 2
        calls = await client.calls("1/0", 1)
        assert all(call.trained and call.tokens is not None and call.tokens.sampled for call in calls)
        (ended,) = await client.ended()
        assert ended.outcome is not None
        assert ended.outcome.reward == 2.0


@pytest.mark.promise("interop:openenv_source")
async def test_a_tuning_plays_the_episodes_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(message: dict[str, Any]) -> str:
        reset = message["type"] == "reset"
        return observed(0, None if reset else 0.25, done=not reset)

    async with corridor(answer) as url, fake_endpoint() as endpoint:
        outcome = await atune(
            solve_openenv,
            f"openenv:{url}?size=2&seed=1",
            backbone="debug",
            engine={"base_url": endpoint, "served_model_name": "any"},
            schedule={"episodes_per_task": 2, "tasks_per_step": 2, "steps": 1},
            loss={"kl_coef": 0.0},
        )
    assert outcome["figures"]["reward/mean"] == 0.25


@pytest.mark.promise("interop:openenv_source")
async def test_pings_are_answered_between_steps_and_an_interrupted_step_is_no_later_ones() -> None:
    pongs = anyio.Event()

    async def socket(request: web.Request) -> web.WebSocketResponse:
        opened = web.WebSocketResponse(autoping=False)
        await opened.prepare(request)
        await opened.receive()
        await opened.send_str(observed(0, None))
        await opened.ping()
        assert (await opened.receive()).type is WSMsgType.PONG
        pongs.set()
        await opened.receive()
        await opened.receive()
        return opened

    async with environment_of(socket) as url, OpenEnvClient(url) as environment:
        await environment.reset()
        await pongs.wait()
        with anyio.move_on_after(0.01):
            await environment.step({"move": "left"})
        with pytest.raises(OpenEnvFailure, match="an earlier request was interrupted; connect again"):
            await environment.step({"move": "right"})


BROKEN = {
    "an error": (json.dumps({"type": "error", "data": {"message": "no room"}}), "no room"),
    "no JSON": ("hello", "the answer is not JSON"),
    "no data": ("{}", "the answer has no data"),
    "no observation": (json.dumps({"type": "observation", "data": {"reward": "x"}}), "is no observation"),
    "a reward without a value": (observed(1, float("nan")), "the answer is not JSON: NaN is no number"),
    "a closed connection": (None, "the environment closed the connection"),
    "an end without a reward": (observed(1, None, done=True), "the episode of 0 steps has no reward"),
}


@pytest.mark.promise("interop:openenv_source")
@pytest.mark.parametrize("kind", BROKEN)
async def test_an_environment_that_fails_gives_no_reward(kind: str) -> None:
    said, reason = BROKEN[kind]
    async with corridor(lambda _: said) as url:
        (task,) = await tasks_of(f"openenv:{url}?size=1")
        with pytest.raises(OpenEnvFailure, match=reason) as raised:
            await solve_openenv(task, Policy("http://127.0.0.1:9/v1"))
        assert "\n" not in str(raised.value)


async def test_a_text_that_is_no_action_ends_the_episode() -> None:
    assert action_of('```json\n{"move": "up"}\n```', {}) == {"move": "up"}
    assert action_of("3", {"required": ["number"]}) == {"number": 3}
    with pytest.raises(ActionFailure, match="no JSON object with an action: 'left'"):
        action_of("left", {"required": ["a", "b"]})


@pytest.mark.promise("interop:openenv_source")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("openenv:localhost:8000", "no URL with a scheme"),
        ("openenv:http://127.0.0.1:9", "can't be read"),
        ("openenv:http://127.0.0.1:9?size=x", "size: Expected `int`"),
        ("verifiers:gsm8k?python=/nowhere/python", "/nowhere/python does not exist; make it with"),
        (f"verifiers:gsm8k?python={sys.executable}", "No module named 'verifiers'"),
    ],
)
def test_a_source_that_can_not_be_read_is_one_line(source: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as raised:
        list(read_tasks(source))
    assert "\n" not in str(raised.value)


STAND_IN = """#!/bin/sh
read request
case "$request" in
*'"do": "list"'*) echo 'loading ...'; echo '{"tasks": [{"idx": 4, "id": "four", "question": "2 + 2?"}]}';;
*broken*) echo 'ValueError: no such task' >&2; exit 1;;
*failed*) echo '{"ok": false, "reward": 0, "answer": "", "turns": 0, "metrics": {}, "errors": ["out of time"]}';;
*episode-key*) echo '{"ok": true, "reward": 0.5, "answer": "4", "turns": 2, "metrics": {"length": 3}, "errors": []}';;
esac
"""


@pytest.mark.promise("interop:verifiers_source")
async def test_tasks_of_a_verifiers_environment_are_read_and_played(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    (task,) = await tasks_of(f"verifiers:sums?python={python}&level=3")
    assert (task.id, task.question) == ("4/four", "2 + 2?")
    assert task.metadata["verifiers"]["env"]["taskset"] == {"id": "sums", "level": 3}
    outcome = await solve_verifiers(task, Policy("http://127.0.0.1:1/v1"))
    assert outcome == EpisodeOutcome(reward=0.5, answer="4", metrics={"length": 3.0, "turns": 2.0})
    failed = await solve_verifiers(task, Policy("http://127.0.0.1:1/v1", model="failed"))
    assert (failed.reward, failed.failure) == (None, "out of time")
    with pytest.raises(VerifiersFailure, match="the program failed: ValueError: no such task"):
        await solve_verifiers(task, Policy("http://127.0.0.1:1/v1", model="broken"))
    with pytest.raises(VerifiersFailure, match="is not a task of verifiers"):
        await play_verifiers(
            Task(index=0, id="x", question="x"), base_url="http://127.0.0.1:1", api_key="", model=""
        )
