"""The client of an environment service, against our server and against services that lie, hang and fail."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web
from anyio import to_thread

from agentflow.errors import ConfigurationError
from agentflow.readers import (
    EnvironmentFailure,
    EnvironmentService,
    EnvironmentState,
    EnvironmentType,
    read_tasks,
    serve_environments,
)
from agentflow.testing import VirtualClock
from agentflow.trace import Task

OPERATIONS = ("get_env_profile", "get_info", "create", "step", "evaluate", "release")


class Counter:
    """Environment whose reward is the number of steps."""

    closed = 0

    def __init__(self, task: str) -> None:
        self.task = task
        self.steps = 0

    def start(self) -> EnvironmentState:
        return EnvironmentState(messages=({"role": "user", "content": f"Count to {self.task}."},))

    def step(self, action: Mapping[str, Any]) -> EnvironmentState:
        if action.get("content") == "crash":
            raise RuntimeError("it fell over")
        self.steps += 1
        done = self.steps == int(self.task)
        return EnvironmentState(messages=({"role": "user", "content": str(self.steps)},), done=done)

    def info(self) -> object:
        return {"tools": ["count"]}

    def evaluate(self) -> float:
        return self.steps / int(self.task)

    def close(self) -> None:
        Counter.closed += 1


COUNTING = EnvironmentType(tasks=lambda split: ["2", "3"] if split == "train" else ["9"], make=Counter)


@pytest.mark.promise("readers:environment")
async def test_tasks_of_a_service_are_read_played_and_scored() -> None:
    Counter.closed = 0
    async with serve_environments({"counting": COUNTING}) as url:
        source = f"environment:{url}?env_type=counting&questions=true"
        tasks = await to_thread.run_sync(lambda: list(read_tasks(source)))
        assert [(task.id, task.question) for task in tasks] == [("2", "Count to 2."), ("3", "Count to 3.")]
        held_out = await to_thread.run_sync(
            lambda: list(read_tasks(f"environment:{url}?env_type=counting&split=test"))
        )
        assert [task.id for task in held_out] == ["9"]
        async with EnvironmentService(url) as service, service.open(tasks[0]) as world:
            assert world.state.text == "Count to 2." and await world.info() == {"tools": ["count"]}
            assert not (await world.step({"role": "assistant", "content": "one"})).done
            assert await world.evaluate() == 0.5
            assert (await world.step({"role": "assistant", "content": "two"})).done
            assert await world.evaluate() == 1.0
            with pytest.raises(EnvironmentFailure, match="step: it answered 500: RuntimeError: it fell over"):
                await world.step({"role": "assistant", "content": "crash"})
        assert Counter.closed == 3


@pytest.mark.promise("readers:environment_server")
async def test_our_server_refuses_what_it_should() -> None:
    clock = VirtualClock()
    async with serve_environments(
        {"counting": COUNTING}, token="secret", max_instances=1, idle_seconds=60, clock=clock
    ) as url:
        async with EnvironmentService(url, token="wrong") as stranger:
            with pytest.raises(EnvironmentFailure, match="it answered 401"):
                await stranger.task_ids("counting")
        async with await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2])) as stream:
            await stream.send(
                b"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\r\n\r\n"
            )
            assert (await stream.receive()).startswith(b"HTTP/1.1 401 ")
        async with EnvironmentService(url, token="secret", tries=1) as service:
            with pytest.raises(EnvironmentFailure, match="it answered 404: there is no environment conting"):
                await service.task_ids("conting")
            instance, _ = await service.create("counting", "2", instance="mine")
            again, state = await service.create("counting", "2", instance="mine")
            assert (instance, again, state.text) == ("mine", "mine", "Count to 2.")
            with pytest.raises(EnvironmentFailure, match="it answered 503"):
                await service.create("counting", "3")
            clock.advance(61)
            await service.create("counting", "3")
            with pytest.raises(EnvironmentFailure, match="it answered 404: there is no instance mine"):
                await service.evaluate("mine")


Answer = Callable[[str, web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def service_of(answer: Answer) -> AsyncGenerator[str]:
    app = web.Application()
    for operation in OPERATIONS:
        app.router.add_post(f"/{operation}", partial(answer, operation))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


LIES: list[tuple[str, str]] = [
    ("not json", "its answer is unusable"),
    ("[1]", "its answer is no JSON object"),
    (json.dumps({"data": "1"}), "gave 1 as a reward, not a finite number"),
    (json.dumps({"data": True}), "gave True as a reward"),
    ('{"data": NaN}', "unusable|gave"),
    (json.dumps({"data": None}), "gave None as a reward"),
    (json.dumps({"success": False, "error": "no\nsuch"}), "it answered 200: no such"),
    ("[" * 100_000, "unusable"),
]


@pytest.mark.promise("readers:environment_server")
async def test_instances_that_are_created_at_once_are_no_more_than_the_limit_and_each_is_made_once() -> None:
    made: list[str] = []

    def make(task: str) -> Counter:
        made.append(task)
        return Counter(task)

    kinds = {"counting": EnvironmentType(tasks=lambda split: ["2"], make=make)}
    outcomes: list[str] = []
    async with (
        serve_environments(kinds, max_instances=2) as url,
        EnvironmentService(url, tries=1) as service,
    ):

        async def create(instance: str) -> None:
            try:
                _, state = await service.create("counting", "2", instance=instance)
                outcomes.append(state.text)
            except EnvironmentFailure as failure:
                outcomes.append(str(failure).rpartition(": ")[2])

        async with anyio.create_task_group() as group:
            for instance in ("a", "a", "b", "c", "d"):
                group.start_soon(create, instance)
    assert sorted(outcomes) == ["Count to 2."] * 3 + ["it answered 503"] * 2
    assert made == ["2", "2"]


@pytest.mark.promise("readers:environment_server")
async def test_an_environment_that_does_not_start_is_closed_and_leaves_its_place() -> None:
    class Broken(Counter):
        def start(self) -> EnvironmentState:
            raise RuntimeError("it fell over")

    kinds = {"broken": EnvironmentType(tasks=lambda split: ["2"], make=Broken), "counting": COUNTING}
    async with (
        serve_environments(kinds, max_instances=1) as url,
        EnvironmentService(url, tries=1) as service,
    ):
        before = Counter.closed
        with pytest.raises(EnvironmentFailure, match="it fell over"):
            await service.create("broken", "2")
        assert Counter.closed == before + 1
        await service.create("counting", "2")


@pytest.mark.promise("readers:environment_hostile")
async def test_a_service_that_lies_is_a_failure_and_never_a_reward() -> None:
    given = [""]

    async def answer(operation: str, request: web.Request) -> web.StreamResponse:
        return web.Response(body=given[0].encode())

    async with service_of(answer) as url, EnvironmentService(url) as service:
        for given[0], message in LIES:
            with pytest.raises(EnvironmentFailure, match=message) as caught:
                await service.evaluate("x")
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
        for given[0] in ('{"data": ["a", 1]}', '{"data": {"a": 1}}', "{}"):
            with pytest.raises(EnvironmentFailure, match="gave no list of task ids"):
                await service.task_ids("x")
        given[0] = json.dumps({"data": ["a", "a"]})
        with pytest.raises(ConfigurationError, match="task 2: id: a is used at"):
            await to_thread.run_sync(lambda: list(read_tasks(f"environment:{url}")))


@pytest.mark.promise("readers:environment_hostile")
async def test_an_answer_without_an_end_is_cut_off() -> None:
    async def answer(operation: str, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(b" " * (1 << 20))

    async with service_of(answer) as url, EnvironmentService(url) as service:
        with pytest.raises(EnvironmentFailure, match="the answer is larger than 16 MiB"):
            await service.evaluate("x")


@pytest.mark.promise("readers:environment_retries")
async def test_only_what_can_be_repeated_is_repeated() -> None:
    asked: list[str] = []

    async def answer(operation: str, request: web.Request) -> web.StreamResponse:
        asked.append(operation)
        if asked.count(operation) < 3:
            # The answer is lost on its way.
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"data": 0.5})

    clock = VirtualClock()
    async with service_of(answer) as url, EnvironmentService(url, clock=clock) as service:
        rewards: list[float] = []

        async def evaluate() -> None:
            rewards.append(await service.evaluate("x"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(evaluate)
            while not rewards:
                await anyio.lowlevel.checkpoint()
                clock.advance(1)
        assert rewards == [0.5] and asked.count("evaluate") == 3
        with pytest.raises(EnvironmentFailure, match="step"):
            await service.step("x", {"role": "assistant", "content": "go"})
        assert asked.count("step") == 1


@pytest.mark.promise("readers:environment_hostile")
async def test_a_service_that_hangs_or_is_away_is_one_line() -> None:
    over = anyio.Event()

    async def answer(operation: str, request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    async with service_of(answer) as url, EnvironmentService(url, timeout=0.05, tries=1) as service:
        with pytest.raises(EnvironmentFailure, match=r"evaluate: it did not answer within 0\.05 s"):
            await service.evaluate("x")
        over.set()
    away = await to_thread.run_sync(lambda: read_tasks(f"environment:{url}?tries=1"))
    with pytest.raises(ConfigurationError, match="get_env_profile: it can't be reached"):
        await to_thread.run_sync(lambda: list(away))
    with pytest.raises(ConfigurationError, match="no URL with a scheme"):
        EnvironmentService("localhost:80")
    async with EnvironmentService(url) as service:
        with pytest.raises(EnvironmentFailure, match="x is not a task of an environment service"):
            async with service.open(Task(index=0, id="x", question="?")):
                pass
