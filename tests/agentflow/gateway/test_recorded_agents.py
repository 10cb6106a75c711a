"""Request bodies that command-line agents sent, shortened, replayed. `tests/clients` runs the agents themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.models import TextPart, ToolCall, ToolReply
from tests.agentflow.gateway._scripted_calls import (
    MODEL,
    ScriptedCalls,
    answer,
    call,
    raw_client,
    scripted_server,
)

FOLDER = Path(__file__).parent / "requests"


def bodies_of(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "model": MODEL} for line in lines]


async def replay(name: str, path: str, calls: ScriptedCalls) -> list[Any]:
    """Send the bodies; return the streams and headers of the answers."""
    async with scripted_server(calls) as url, raw_client(url) as client:
        answers: list[Any] = []
        for body in bodies_of(name):
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            answers.append(response)
        return answers


@pytest.mark.promise("gateway:agents:recorded")
async def test_the_conversation_of_claude_code_only_grows_and_keeps_its_tool_results() -> None:
    calls = ScriptedCalls([answer(number, "done") for number in range(3)])
    responses = await replay("claude_code", "/v1/messages?beta=true", calls)
    first, second, third = (call.messages for call in calls.calls)
    assert third[: len(second)] == second
    assert second[: len(first)] == first
    written, failed = third[-3].parts[0], third[-1].parts[0]
    assert isinstance(written, ToolReply)
    assert isinstance(failed, ToolReply)
    assert (written.name, written.failed) == ("Write", False)
    assert (failed.name, failed.failed, failed.parts) == ("Bash", True, (TextPart("Exit code 1\n1"),))
    assert [call.removed for call in calls.calls] == [1, 1, 1]
    assert "x-anthropic-billing-header" not in str(calls.calls)
    assert len(calls.calls[0].tools) == 12
    assert responses[0].headers["x-agentflow-ignored"] == (
        "context_management, metadata, thinking, output_config.effort"
    )


@pytest.mark.promise("gateway:agents:recorded")
async def test_the_conversation_of_codex_only_grows_and_its_namespaces_come_back() -> None:
    wait = call("call_9", "multi_agent_v1__wait_agent", targets=["a"])
    calls = ScriptedCalls([answer(0, "done"), answer(1, "done"), answer(2, "", wait)])
    responses = await replay("codex", "/v1/responses", calls)
    first, second, third = (call.messages for call in calls.calls)
    assert third[: len(second)] == second
    assert second[: len(first)] == first
    assert [message.role for message in first] == ["system", "system", "user", "user"]
    called = third[-2].parts[0]
    assert isinstance(called, ToolCall)
    assert (called.name, called.arguments) == ("exec_command", {"cmd": "cat a.txt"})
    names = [tool.name for tool in calls.calls[0].tools]
    assert "exec_command" in names
    assert "multi_agent_v1__wait_agent" in names
    assert responses[0].headers["x-agentflow-ignored"].endswith("store, tools.web_search")
    data = [json.loads(line[6:]) for line in responses[2].text.splitlines() if line.startswith("data: ")]
    (item,) = data[-1]["response"]["output"]
    assert (item["namespace"], item["name"], item["call_id"]) == ("multi_agent_v1", "wait_agent", "call_9")


@pytest.mark.promise("gateway:apis:custom_tools")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_of_responses_gets_text_and_returns_text(stream: bool) -> None:
    patch = call("call_1", "apply_patch", input="*** Begin")
    calls = ScriptedCalls([answer(0, "", patch), answer(1, "done")])
    tools = [
        {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "grammar"}}
    ]
    async with scripted_server(calls) as url, raw_client(url) as client:
        body = {"model": MODEL, "input": "Go", "tools": tools, "stream": stream}
        text = (await client.post("/v1/responses", json=body)).text
        data = json.loads(text.rsplit("data: ", 1)[1])["response"] if stream else json.loads(text)
        (item,) = data["output"]
        result = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "patched"}
        await client.post("/v1/responses", json={**body, "stream": False, "input": [item, result]})
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
    called, replied = calls.calls[1].messages
    assert isinstance(called.parts[0], ToolCall)
    assert called.parts[0].arguments == {"input": "*** Begin"}
    assert replied.parts == (ToolReply("call_1", "apply_patch", (TextPart("patched"),)),)
