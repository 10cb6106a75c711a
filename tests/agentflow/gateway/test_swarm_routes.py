"""The swarm API over HTTP, with its client."""

import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from aiohttp import web
from pydantic import SecretStr

from agentflow.errors import RunStopped
from agentflow.gateway import (
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeRegistry,
    GatewayClient,
    GatewayError,
    GatewaySettings,
    add_swarm_routes,
)
from agentflow.gateway._episodes import ClientIdentity
from tests.agentflow.gateway._registry import ask, offers, registry_at, served, task

OWNER_TOKEN = "owner-token-of-this-test"
WORKER_TOKEN = "worker-token-of-this-test"
VIEWER_TOKEN = "viewer-token-of-this-test"
SETTINGS = GatewaySettings(
    token=SecretStr(OWNER_TOKEN),
    worker_token=SecretStr(WORKER_TOKEN),
    viewer_token=SecretStr(VIEWER_TOKEN),
    group_size=2,
)


@asynccontextmanager
async def gateway(folder: Path) -> AsyncGenerator[tuple[EpisodeRegistry, str]]:
    """Serve a registry."""
    async with (
        registry_at(folder, SETTINGS, base_url=lambda: f"{address}/v1") as registry,
        served(registry, SETTINGS) as address,
    ):
        yield registry, address


@pytest.mark.promise("gateway:swarm:protocol")
async def test_a_trainer_and_a_worker_play_a_group_over_http(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path) as (registry, url),
        GatewayClient(url, OWNER_TOKEN) as trainer,
        GatewayClient(url + "/v1", WORKER_TOKEN) as worker,
        GatewayClient(url, VIEWER_TOKEN) as viewer,
    ):
        assert await worker.begin() is None
        strange = EpisodeOffer(id="1/ä?#..%2F", group="1", task=task(), seed="s")
        await trainer.set_version(4)
        await trainer.offer([strange, *offers(size=1)])
        one, two = await worker.begin(wait=5), await worker.begin(mode="train")
        assert one is not None
        assert two is not None
        assert (one.episode, one.version, one.client) == (strange.id, 4, two.client)
        live, agent = registry.find(one.keys[""])
        live.delivered([answer.id for answer in await live.complete(agent, ask("hi"), "")])
        assert await worker.alive(one) == 600
        receipt = await worker.end(one, EpisodeOutcome(reward=0.5, metrics={"steps": 3}), "e")
        assert receipt == await worker.end(one, EpisodeOutcome(reward=0.5, metrics={"steps": 3}), "e")
        await worker.abort(two, "no time")
        (ended,) = await trainer.ended(wait=5)
        assert (ended.offer, ended.version, ended.outcome.metrics) == (strange, 4, {"steps": 3.0})
        (call,) = await trainer.calls(ended.offer.id, ended.attempt)
        assert call.tokens is not None
        assert call.tokens.sampled == (2, 3)
        assert await viewer.tokens(ended) == await worker.tokens(one) == [call]
        await worker.put_reward(one, 2.5)
        (again,) = await trainer.ended(ended.number)
        assert (again.outcome.reward, again.outcome.metrics) == (2.5, {"steps": 3.0})
        await trainer.score(strange.id, 1, EpisodeOutcome(reward={"": 1.0}))
        await trainer.use([strange.id], 1)
        await trainer.hold()
        assert (await viewer.status()).held
        await trainer.go_on()
        own = await worker.begin(task("mine"))
        assert own is not None
        assert own.task == task("mine")
        await trainer.withdraw([own.episode])
        await trainer.finish()
        with pytest.raises(RunStopped, match="the run is over"):
            await worker.begin(wait=30)
        with pytest.raises(GatewayError, match="dropped: stale"):
            await worker.end(own, EpisodeOutcome(reward=1))


@pytest.mark.promise("gateway:swarm:begin")
async def test_a_client_that_leaves_while_it_begins_costs_no_attempt(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (registry, url), GatewayClient(url, WORKER_TOKEN) as worker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(worker.begin, wait=30))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await registry.slots.offer(offers(size=1))
        begun = await worker.begin(wait=5)
        assert begun is not None


@pytest.mark.promise("gateway:swarm:address")
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (SETTINGS.model_copy(update={"host": "0.0.0.0"}), "localhost"),
        (
            SETTINGS.model_copy(update={"host": "0.0.0.0", "public_url": "https://gate.example/v1"}),
            "registry",
        ),
        (SETTINGS, "registry"),
    ],
)
async def test_an_episode_is_told_an_address_that_its_client_reaches(
    tmp_path: Path, settings: GatewaySettings, name: str
) -> None:
    async with (
        registry_at(tmp_path, settings, base_url=lambda: "http://registry:1/v1") as registry,
        served(registry, settings) as url,
        GatewayClient(url.replace("127.0.0.1", "localhost"), WORKER_TOKEN) as worker,
    ):
        await registry.slots.offer(offers(size=1))
        begun = await worker.begin(wait=5)
        assert begun is not None
        assert urlsplit(begun.base_url).hostname == name


@pytest.mark.promise("gateway:swarm:stop")
async def test_a_gateway_stops_although_clients_wait_for_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = anyio.Event()

    async def begin(self: EpisodeRegistry, who: ClientIdentity, **how: object) -> None:
        arrived.set()
        await anyio.sleep_forever()

    async def wait_for_episode(url: str) -> None:
        async with GatewayClient(url, WORKER_TOKEN, patience=0) as worker:
            with suppress(RunStopped):
                await worker.begin(wait=60)

    monkeypatch.setattr(EpisodeRegistry, "begin", begin)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks, gateway(tmp_path) as (_, url):
            tasks.start_soon(wait_for_episode, url)
            await arrived.wait()


@pytest.mark.promise("gateway:swarm:client")
async def test_a_client_waits_for_an_absent_gateway_and_then_stops_with_one_line(tmp_path: Path) -> None:
    async with GatewayClient("http://127.0.0.1:9", WORKER_TOKEN, patience=0.0) as worker:
        with pytest.raises(
            RunStopped, match=r"http://127.0.0.1:9 gives no answer for 0 s \(.*start the gateway"
        ):
            await worker.begin()


@pytest.mark.promise("gateway:swarm:curl")
async def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/swarm.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    async with gateway(tmp_path / "gateway") as (registry, url):
        await registry.slots.offer([EpisodeOffer(id="12/3", group="12", task=task(), seed="s")])
        environment = {"GATEWAY": url, "TOKEN": WORKER_TOKEN, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        script = "set -e\ncurl() { command curl -f -w '\\n' \"$@\"; }\n" + "\n".join(commands)
        ran = await anyio.run_process(
            ["sh", "-c", script], cwd=tmp_path, env=environment, stderr=subprocess.STDOUT
        )
        said, alive, receipt, again, reward, tokens, aborted = ran.stdout.decode().splitlines()
        assert "to 1 + 1?" in said
        assert alive == '{"expires":600.0}'
        assert receipt == again
        shown = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
        assert json.loads(receipt).keys() == json.loads(shown[1]).keys()
        begun = json.loads((tmp_path / "begun.json").read_bytes())
        assert begun.keys() == json.loads(shown[0]).keys()
        assert (reward, aborted) == ("{}", "{}")
        assert [call["id"] for call in json.loads(tokens)["calls"]] == ["c1"]
        (ended,) = await registry.slots.ended()
        assert ended.outcome.reward == 2.5
        states = registry.status().states
        assert (states["offered"], states["scored"]) == (2, 1)


@pytest.mark.promise("gateway:swarm:curl")
async def test_the_page_names_every_request(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/swarm.md").read_text(encoding="utf-8")
    app = web.Application()
    async with registry_at(tmp_path, SETTINGS) as registry:
        add_swarm_routes(app, registry, SETTINGS)
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    missing = [
        (method, path)
        for method, path in routes
        if method != "HEAD" and f"{method} {path.replace('{id}', 'ID')}" not in page
    ]
    assert missing == []
