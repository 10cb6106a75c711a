"""The gateway as a process: started, killed, restarted."""

import os
import signal
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr

from agentflow.errors import RunStopped
from agentflow.gateway import (
    BegunEpisode,
    EpisodeOutcome,
    Gateway,
    GatewayClient,
    GatewayError,
    GatewaySettings,
    UpstreamSettings,
)
from agentflow.testing import fake_endpoint
from tests.agentflow.gateway._registry import offers
from tests.agentflow.gateway.test_store import change_file

KEY = "key-of-the-upstream-engine"


async def chat(begun: BegunEpisode, text: str) -> tuple[int, str]:
    """Send a chat request with the key of an episode; return the status and the body."""
    body = {"model": begun.model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    headers = {"Authorization": f"Bearer {begun.keys['']}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{begun.base_url}/chat/completions", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def visible(pid: int, secret: str) -> bool:
    """Return true if a process has a secret in its arguments or environment."""
    return any(secret.encode() in Path(f"/proc/{pid}/{part}").read_bytes() for part in ("cmdline", "environ"))


@pytest.mark.promise("gateway:process:refused")
@pytest.mark.promise("gateway:process:restart")
async def test_a_killed_gateway_comes_back_with_its_address_and_its_episodes(tmp_path: Path) -> None:
    async with fake_endpoint() as upstream:
        settings = GatewaySettings(
            folder=tmp_path,
            worker_token=SecretStr("token-of-a-worker"),
            upstream=UpstreamSettings(base_url=upstream, model="tiny", api_key=SecretStr(KEY)),
        )
        async with (
            Gateway(settings) as gateway,
            GatewayClient(gateway.url, gateway.token) as trainer,
            GatewayClient(gateway.url, "token-of-a-worker") as worker,
        ):
            assert not visible(gateway.pid, gateway.token)
            assert not visible(gateway.pid, KEY)
            with pytest.raises(RunStopped, match=r"can't be started: .*a run is active in"):
                await Gateway(settings).__aenter__()
            await trainer.offer(offers())
            ended, lost = await worker.begin(), await worker.begin()
            assert ended is not None
            assert lost is not None
            status, text = await chat(ended, "hello")
            assert (status, "chat.completion" in text) == (200, True)
            assert (await chat(lost, "hello"))[0] == 200
            receipt = await worker.end(ended, EpisodeOutcome(reward=1.0), "e")
            assert (receipt.calls, receipt.tokens > 0) == (1, True)
            os.kill(gateway.pid, signal.SIGKILL)
            assert await worker.end(ended, EpisodeOutcome(reward=1.0), "e") == receipt
            assert gateway.starts == 2
            with pytest.raises(GatewayError, match="the gateway was restarted"):
                await worker.end(lost, EpisodeOutcome(reward=1.0))
            assert (await chat(lost, "late"))[0] == 410
            (episode,) = await trainer.ended()
            calls = await trainer.calls(episode.offer.id, episode.attempt)
            assert [(call.trained, call.delivered) for call in calls] == [(True, True)]
            again = await worker.begin()
            assert again is not None
            assert (again.episode, again.attempt, again.base_url) == (lost.episode, 2, lost.base_url)


@pytest.mark.promise("gateway:process:refused")
async def test_a_gateway_that_fails_again_and_again_ends_the_run_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.gateway._process.RESTARTS", 0)
    upstream = UpstreamSettings(base_url="http://127.0.0.1:9/v1", model="tiny")
    with pytest.raises(
        RunStopped, match=r"fails again and again: journal .* no such table: pages; nothing with"
    ):
        async with (
            Gateway(GatewaySettings(folder=tmp_path, upstream=upstream)) as gateway,
            GatewayClient(gateway.url, gateway.token) as client,
        ):
            await client.offer(offers())
            change_file(tmp_path, "ALTER TABLE pages RENAME TO gone")
            await client.begin()


@pytest.mark.promise("gateway:hosts")
async def test_a_gateway_answers_to_its_own_names_and_those_in_hosts_only(tmp_path: Path) -> None:
    async with fake_endpoint() as upstream:
        settings = GatewaySettings(
            folder=tmp_path,
            hosts=("gate.example",),
            upstream=UpstreamSettings(base_url=upstream, model="tiny", api_key=SecretStr(KEY)),
        )
        async with Gateway(settings) as gateway, aiohttp.ClientSession() as session:

            async def status(host: str) -> int:
                async with session.get(f"{gateway.url}/swarm/status", headers={"Host": host}) as answer:
                    return answer.status

            # Without a token: the host is checked first.
            assert {await status(host) for host in ("gate.example", "127.0.0.1", "localhost")} == {401}
            assert {await status(host) for host in ("evil.example", "gate.example.evil")} == {403}
