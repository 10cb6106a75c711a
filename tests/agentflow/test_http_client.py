"""Clients of servers that answer with too much fail with one line, and take no more memory than the bound."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import pytest
from pydantic import SecretStr

from agentflow.errors import AgentFlowError, ModelFailure, ModelFailureKind, ToolFailure
from agentflow.gateway import GatewayClient
from agentflow.learner import TrainConfig, models_at_engine
from agentflow.learner._config import EngineSettings
from agentflow.models._apis import EncodedRequest
from agentflow.models._request_error import RequestError
from agentflow.models._transport import HttpTransport
from agentflow.readers import EnvironmentService, read_tasks
from agentflow.rollouts.benchmarks._sources import HubSource, hub_files
from agentflow.sandbox import Sandbox, _remote
from agentflow.serving import EngineControl
from mcp_servers.document._backend import VisionModel
from mcp_servers.document._settings import DocumentSettings
from mcp_servers.rag._embedders import EndpointEmbedder
from mcp_servers.rag._settings import EmbeddingSettings
from mcp_servers.serving import _peers
from mcp_servers.serving._peers import Peer
from mcp_servers.serving._server_names import PeerAddress
from tests._hostile import Attack, hostile
from tests.agentflow.models._serving import call, painter, says, script

MIB = 1 << 20


async def model(url: str) -> None:
    async with painter(url) as asked:
        await asked.complete(call())


async def stream(url: str) -> None:
    lines: list[bytes] = []
    request = EncodedRequest("/x", b"{}", on_line=lines.append)
    async with HttpTransport(url, {}, 1, max_bytes=64 * MIB) as transport:
        await transport.post(request, 60)


async def gateway(url: str) -> None:
    async with GatewayClient(url, "token", patience=0) as client:
        await client.status()


async def embeddings(url: str) -> None:
    async with AsyncExitStack() as stack:
        embedder = EndpointEmbedder(url, EmbeddingSettings(base_url=url, model="m"))
        stack.push_async_callback(embedder.close)
        await embedder.of_texts(["text"])


async def vision(url: str) -> None:
    settings = DocumentSettings(vlm_model="sees", vlm_api_url=url, vlm_retry_max_attempts=1)
    await VisionModel(settings).read("goal", "text", [])


async def environment(url: str) -> None:
    async with EnvironmentService(url, tries=1) as service:
        await service.task_ids("default")


async def openenv(url: str) -> None:
    await anyio.to_thread.run_sync(lambda: list(read_tasks(f"openenv:{url}")))


async def engine(url: str) -> None:
    async with EngineControl(url) as control:
        await control.version()


async def engine_models(url: str) -> None:
    config = TrainConfig(backbone="debug", engine=EngineSettings(base_url=url, api_key=SecretStr("k")))
    await models_at_engine(config, {})


async def tools(url: str) -> None:
    async with Sandbox(url, token="token"):
        pass


async def peer(url: str) -> None:
    async with AsyncExitStack() as stack:
        other = Peer(PeerAddress(url), "token")
        stack.push_async_callback(other.close)
        await other.call("session_list", {}, None, None)


CLIENTS: tuple[Callable[[str], Awaitable[None]], ...] = (
    model, stream, gateway, embeddings, vision, environment, openenv, engine, engine_models, tools, peer,
)  # fmt: skip
REASONS: dict[Attack, str] = {
    "bomb": "compressed although no compression was requested",
    "body": "larger than",
    "line": "larger than|exceeded the 67108864 byte limit",
}


@pytest.mark.promise("project:answers")
@pytest.mark.parametrize("attack", REASONS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_an_answer_that_is_compressed_or_too_large_ends_the_call_with_one_line(
    client: Callable[[str], Awaitable[None]], attack: Attack
) -> None:
    async with hostile(attack) as url:
        with pytest.raises((AgentFlowError, RequestError), match=REASONS[attack]) as raised:
            await client(url)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("project:answers")
@pytest.mark.parametrize("client", CLIENTS)
async def test_an_endless_head_ends_the_call_with_one_line(client: Callable[[str], Awaitable[None]]) -> None:
    async with hostile("head") as url:
        with pytest.raises((AgentFlowError, RequestError)) as raised:
            await client(url)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("project:answers")
async def test_a_list_of_the_hub_that_is_too_long_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hostile("body") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(AgentFlowError, match="is not that of a hub"):
            await anyio.to_thread.run_sync(hub_files, HubSource(name="a/b"))


@pytest.mark.promise("project:answers")
@pytest.mark.parametrize("client", [tools, peer])
async def test_a_tool_server_that_answers_without_end_is_given_up(
    client: Callable[[str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remote, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(_peers, "CONNECT_SECONDS", 0.1)
    async with hostile("drip") as url:
        with anyio.fail_after(60), pytest.raises(ToolFailure, match="TimeoutError"):
            await client(url)


PROGRAM = r"""
import re, sys
from pathlib import Path
import anyio
from tests.agentflow.models._serving import call, painter
from tests.agentflow.test_http_client import stream

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def ask(url):
    async with painter(url) as model:
        await model.complete(call())

async def main(url, client):
    before = peak()
    try:
        await client(url)
    except Exception as error:
        print(peak() - before, type(error).__name__)

anyio.run(main, sys.argv[1], stream if sys.argv[2] == "line" else ask)
"""


@pytest.mark.promise("project:answers")
@pytest.mark.parametrize("attack", ["bomb", "body", "error", "line"])
async def test_the_memory_of_a_model_client_rises_by_no_more_than_the_bound(attack: Attack) -> None:
    async with hostile(attack) as url:
        done = await anyio.run_process(
            [sys.executable, "-c", PROGRAM, url, attack], check=False, stderr=subprocess.STDOUT
        )
    assert done.returncode == 0, done.stdout.decode()
    risen, _, error = done.stdout.decode().strip().rpartition("\n")[2].partition(" ")
    assert error in ("ModelFailure", "RequestError")
    assert int(risen) < 200


@pytest.mark.promise("project:answers")
async def test_the_limit_of_a_models_answers_is_a_setting_and_a_longer_one_is_not_requested_again() -> None:
    async with script(says("a" * 2000)) as endpoint, painter(endpoint.url, response_bytes=1024) as asked:
        with pytest.raises(ModelFailure, match="larger than 1,024 bytes; raise response_bytes") as failed:
            await asked.complete(call())
    assert failed.value.kind is ModelFailureKind.UNAVAILABLE
    assert len(endpoint.bodies) == 1
    assert endpoint.headers[0]["accept-encoding"] == "identity"
