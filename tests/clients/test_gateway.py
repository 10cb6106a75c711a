"""Unchanged clients play episodes through the gateway: each is told only an address, a key and a model."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from openai import AsyncOpenAI

from agentflow.gateway import (
    BegunEpisode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    Gateway,
    GatewayClient,
    GatewaySettings,
    PromptOrigin,
    RecordedCall,
)
from agentflow.serving import ModelServer
from agentflow.testing.endpoint import fake_endpoint
from agentflow.trace import Task
from tests.behaviour._markdown import snippets
from tests.clients._environments import DEVELOPMENT, DRIVERS, FRAMEWORKS, ROOT, node_folder, python_of, run
from tests.clients._scripted_vllm import scripted_vllm, tool_line
from tests.conformance._node import node

PAGE = ROOT / "docs/gateway.md"

WEATHER = "Rome: sunny, 21 degrees. Oslo: snow, -5 degrees."
SCRIPTS = {
    "greeting": [WEATHER],
    "thinking": ["<think>\nRome first.\n</think>\n\nSunny in Rome."],
    "weather": [tool_line("weather", city="Rome"), tool_line("weather", city="Oslo"), WEATHER],
    "claude": [
        tool_line("Read", file_path="numbers.txt"),
        tool_line("Write", file_path="sum.txt", content="42"),
        "The sum is in sum.txt.",
    ],
    "codex": [
        tool_line("exec_command", cmd="cat numbers.txt"),
        tool_line("exec_command", cmd="printf 42 > sum.txt"),
        "The sum is in sum.txt.",
    ],
}
PYTHON = {
    **dict.fromkeys(
        ["openai-async", "openai-agents-chat", "openai-agents-responses", "openai-agents-stream", "langgraph",
         "langgraph-responses", "langgraph-stream", "pydantic-ai", "agentscope", "anthropic", "anthropic-stream"],
        FRAMEWORKS,
    ),
    **dict.fromkeys(["openai", "openai-stream", "curl"], DEVELOPMENT),
}  # fmt: skip
"""Environment of each client."""


@asynccontextmanager
async def gateway(url: str, model: str, key: str = "") -> AsyncGenerator[GatewayClient]:
    """Start a gateway whose engine is at that address, and yield a client of its owner."""
    upstream = {"base_url": url, "model": model, "api_key": key}
    settings = GatewaySettings.model_validate({"upstream": upstream})
    async with Gateway(settings) as process, GatewayClient(process.url, process.token) as client:
        yield client


async def begin(client: GatewayClient, number: int = 0) -> BegunEpisode:
    task = Task(index=0, id="1", question="Weather?")
    await client.offer([EpisodeOffer(id=f"1/{number}", group="1", task=task)])
    begun = await client.begin(wait=10)
    assert begun is not None
    return begun


async def finish(client: GatewayClient, begun: BegunEpisode) -> tuple[EpisodeReceipt, list[RecordedCall]]:
    receipt = await client.end(begun, EpisodeOutcome(reward=1.0))
    return receipt, await client.calls(begun.episode, begun.attempt)


async def play(name: str, begun: BegunEpisode, folder: Path, question: str) -> str:
    """Let a client play, and return its answer."""
    command = [python_of(PYTHON[name]), str(DRIVERS / "model_clients.py"), name]
    status, output, errors = await run(command, folder, variables(begun, question))
    assert status == 0, errors[-2000:]
    return output.strip()


def variables(begun: BegunEpisode, task: str) -> dict[str, str]:
    """Return everything that a client is told."""
    return {"BASE_URL": begun.base_url, "API_KEY": begun.keys[""], "MODEL": begun.model, "TASK": task}


def check(receipt: EpisodeReceipt, calls: list[RecordedCall], number: int) -> None:
    """Check that all calls were delivered and each continued the tokens of the one before it."""
    assert receipt.calls == len(calls) == number
    assert [call.origin for call in calls] == [PromptOrigin.OPENING] + [PromptOrigin.APPENDED] * (number - 1)
    assert [call.parent for call in calls] == ["", *(call.id for call in calls[:-1])]
    assert all(call.delivered and call.trained and call.tokens is not None for call in calls)
    assert receipt.tokens == sum(len(call.tokens.sampled) for call in calls if call.tokens is not None)


@pytest.mark.promise("gateway:clients")
async def test_clients_play_tool_episodes_whose_tokens_are_appended(tmp_path: Path) -> None:
    async with fake_endpoint(tool_turns=2) as url, gateway(url, "fake") as client:
        for number, name in enumerate(("openai", "openai-stream", "curl")):
            begun = await begin(client, number)
            answer = await play(name, begun, tmp_path, "Weather in Rome and Oslo?")
            check(*await finish(client, begun), 3)
            assert answer


@pytest.fixture(scope="module")
def scripted() -> Generator[ModelServer]:
    """Return a real vLLM that follows the scripts."""
    with scripted_vllm(SCRIPTS) as server:
        yield server


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.promise("gateway:clients")
@pytest.mark.parametrize("name", PYTHON)
async def test_a_client_plays_a_tool_episode_on_vllm(
    name: str, scripted: ModelServer, tmp_path: Path
) -> None:
    async with gateway(scripted.url, scripted.model, scripted.key) as client:
        begun = await begin(client)
        answer = await play(name, begun, tmp_path, "Weather in Rome and Oslo? [[script weather]]")
        check(*await finish(client, begun), 3)
    assert answer == WEATHER


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.promise("gateway:agents:real")
@pytest.mark.parametrize("name", ["claude", "codex"])
async def test_a_command_line_agent_finishes_a_task_with_two_files_on_vllm(
    name: str, scripted: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "numbers.txt").write_text("40\n2\n", encoding="utf-8")
    async with gateway(scripted.url, scripted.model, scripted.key) as client:
        begun = await begin(client)
        command = (claude_code if name == "claude" else codex)(tmp_path, begun)
        task = f"Write the sum of the numbers in numbers.txt to sum.txt. [[script {name}]]"
        programs = node_folder() / "node_modules/.bin"
        path = f"{programs}:{Path(node()).parent}:/usr/bin:/bin"
        with anyio.fail_after(500):
            status, output, errors = await run(command, tmp_path, {**variables(begun, task), "PATH": path})
        assert status == 0, output[-2000:] + errors[-2000:]
        check(*await finish(client, begun), 3)
    assert (tmp_path / "sum.txt").read_text(encoding="utf-8") == "42"
    assert "The sum is in sum.txt." in output


def claude_code(folder: Path, begun: BegunEpisode) -> list[str]:
    """Return the command line of Claude Code in docs/gateway.md, with permission to use tools."""
    (line,) = (snippet.text for snippet in snippets(PAGE, "sh") if "claude" in snippet.text)
    return ["sh", "-c", f"export IS_SANDBOX=1; {line.rstrip()} --dangerously-skip-permissions"]


def codex(folder: Path, begun: BegunEpisode) -> list[str]:
    """Return the command line of Codex, configured with the snippet of docs/gateway.md."""
    (settings,) = (snippet.text for snippet in snippets(PAGE, "toml") if "wire_api" in snippet.text)
    settings = settings.replace("http://127.0.0.1:18900/v1", begun.base_url).replace(
        '"policy"', f'"{begun.model}"'
    )
    (folder / ".codex").mkdir()
    (folder / ".codex/config.toml").write_text(settings, encoding="utf-8")
    options = "--skip-git-repo-check --json --dangerously-bypass-approvals-and-sandbox"
    return ["sh", "-c", f'codex exec {options} "$TASK"']


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.promise("gateway:stream:text")
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_text_comes_from_vllm_in_pieces_and_reasoning_apart(api: str, scripted: ModelServer) -> None:
    async with gateway(scripted.url, scripted.model, scripted.key) as client:
        begun = await begin(client)
        async with AsyncOpenAI(base_url=begun.base_url, api_key=begun.keys[""]) as model:
            for script, expected, least in (("greeting", WEATHER, 5), ("thinking", "Sunny in Rome.", 1)):
                pieces: list[str] = []
                text = f"[[script {script}]]"
                if api == "chat":
                    messages: list[Any] = [{"role": "user", "content": text}]
                    chunks = await model.chat.completions.create(
                        model=begun.model, messages=messages, stream=True
                    )
                    pieces += [chunk.choices[0].delta.content or "" async for chunk in chunks]
                else:
                    events = await model.responses.create(model=begun.model, input=text, stream=True)
                    pieces += [
                        event.delta async for event in events if event.type == "response.output_text.delta"
                    ]
                assert "".join(pieces) == expected
                assert len(list(filter(None, pieces))) >= least
        _, calls = await finish(client, begun)
    assert [call.reasoning.strip() for call in calls] == ["", "Rome first."]


CALL = '{"city": "Rome"}'
HISTORY: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "weather", "arguments": CALL}},
                    {"id": "b", "type": "function", "function": {"name": "weather", "arguments": CALL}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
            {"role": "tool", "tool_call_id": "b", "content": "cloudy"},
            {"role": "user", "content": "So? [[script weather]]"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        "max_tokens": 50,
    },
    "/v1/responses": {
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "One."}, {"type": "input_text", "text": "Two."}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": CALL},
            {"type": "function_call", "call_id": "b", "name": "weather", "arguments": CALL},
            {"type": "function_call_output", "call_id": "a", "output": "sunny"},
            {"type": "function_call_output", "call_id": "b", "output": "cloudy"},
            {"role": "user", "content": "So? [[script weather]]"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}],
        "max_output_tokens": 50,
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
                    {"type": "tool_use", "id": "b", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "b",
                        "content": [{"type": "text", "text": "cloudy"}],
                    },
                    {"type": "text", "text": "So? [[script weather]]"},
                ],
            },
        ],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        "max_tokens": 50,
    },
}
"""The same conversation in three APIs, with answers that the gateway has not seen."""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.promise("gateway:apis:tokens")
async def test_prompts_have_the_tokens_of_vllm_s_own_rendering_in_each_api(scripted: ModelServer) -> None:
    prompts: set[tuple[int, ...]] = set()
    async with (
        gateway(scripted.url, scripted.model, scripted.key) as client,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        for number, (path, body) in enumerate(HISTORY.items()):
            begun = await begin(client, number)
            asked = {**body, "model": begun.model}
            key = {"Authorization": f"Bearer {begun.keys['']}"}
            answered = await http.post(begun.base_url.removesuffix("/v1") + path, json=asked, headers=key)
            assert answered.status_code == 200, answered.text
            _, (call,) = await finish(client, begun)
            assert call.tokens is not None
            key = {"Authorization": f"Bearer {scripted.key}"}
            rendered = await http.post(
                f"{scripted.url.removesuffix('/v1')}{path}/render", json=asked, headers=key
            )
            assert rendered.status_code == 200, rendered.text
            assert list(call.tokens.prompt) == rendered.json()["token_ids"], path
            prompts.add(call.tokens.prompt)
    assert len(prompts) == 1
