"""Conversations with tools on a real vLLM: training uses exactly the tokens that it saw, with the trainer's probabilities."""

import json
from collections import Counter
from http import HTTPStatus
from random import Random
from typing import Any

import aiohttp
import numpy as np
import pytest

from agentflow.gateway import (
    AgentConversations,
    ExactAnswerer,
    GatewayCall,
    PromptOrigin,
    RecordedCall,
    token_tree,
)
from agentflow.gateway._chat import ChatApi
from agentflow.gateway._dialect import ModelApi, RequestContext
from agentflow.gateway._messages import MessagesApi
from agentflow.gateway._responses import ResponsesApi
from agentflow.learner.local import LocalBackbone, PolicySettings
from agentflow.learner.packing import scoring_row
from agentflow.models import (
    Completion,
    Message,
    ModelConnection,
    ModelSettings,
    Sampling,
    TextPart,
    ToolCall,
    ToolSpec,
)
from agentflow.serving import ModelServer
from agentflow.trace import ForkReason
from tests._vllm import model_folder
from tests.agentflow.gateway._conversations import replies, said, user, whole_tokens
from tests.agentflow.trace._recorded import recorded

pytestmark = pytest.mark.timeout(900)

LOOK = ToolSpec(
    "look",
    "Look it up.",
    {
        "type": "object",
        "properties": {"q": {"type": "string", "enum": ["red", "größer"]}},
        "required": ["q"],
        "additionalProperties": False,
    },
)
FREE = ("c1", "c4", "c6")
"""Calls that no grammar constrains."""


async def talk(answerer: ExactAnswerer, number: int) -> list[RecordedCall]:
    """Play an episode with tool calls, free text, a retry and several answers."""
    random, memory, records = Random(number), AgentConversations(), list[RecordedCall]()

    async def ask(*messages: Message, choice: str, answers: int = 1) -> Completion[None]:
        call = GatewayCall(
            dialect="chat",
            messages=messages,
            tools=(LOOK,),
            tool_choice=choice,
            answers=answers,
            sampling=Sampling(max_tokens=60 if choice == "required" else 12),
        )
        ids = [f"c{len(records)}.{place}" for place in range(answers)]
        done = await answerer.answer(call, memory, ids, seed=str(number), temperature=1.0)
        records.extend(record for _, record in done)
        return random.choice(done)[0]

    messages = [Message("system", (TextPart("You look things up."),)), user(f"Task {number % 2}: how many?")]
    for turn in range(4):
        answer = await ask(*messages, choice="required" if turn % 2 == 0 else "auto", answers=1 + turn % 2)
        messages += [said(answer), replies(answer, random)]
    await ask(*messages, choice="auto")
    return records


@pytest.mark.promise("gateway:exact:constraints")
async def test_a_schema_that_the_engine_refuses_leaves_later_tool_calls_alone(vllm: ModelServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}, "required": ["n"]}
    body = {
        "model": vllm.model,
        "messages": [{"role": "user", "content": "How many?"}],
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "count", "schema": schema}},
    }
    headers = {"Authorization": f"Bearer {vllm.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{vllm.url}/chat/completions", json=body) as answer,
    ):
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert "xgrammar" in await answer.text()
    settings = ModelSettings.model_validate(
        {"name": vllm.model, "base_url": vllm.url, "api_key": vllm.key, "tokens": True}
    )
    async with ModelConnection(settings) as connection:
        assert await talk(ExactAnswerer(connection.engine), 0)


@pytest.mark.promise("gateway:exact:vllm")
async def test_conversations_with_tools_have_the_tokens_and_probabilities_of_the_engine(
    vllm: ModelServer,
) -> None:
    async with recorded(vllm.address) as recorder:
        settings = ModelSettings.model_validate(
            {"name": vllm.model, "base_url": recorder.url, "api_key": vllm.key, "tokens": True}
        )
        async with ModelConnection(settings) as connection:
            answerer = ExactAnswerer(connection.engine)
            episodes = [await talk(answerer, number) for number in range(4)]
        folder = await model_folder(vllm)
    records = [record for episode in episodes for record in episode]
    assert {record.origin for record in records} == {PromptOrigin.OPENING, PromptOrigin.APPENDED}
    called = [
        part
        for record in records
        for part in record.answer.parts
        if isinstance(part, ToolCall) and part.arguments
    ]
    assert called, "the engine's parser reads what the grammar enforces"
    found = [tokens for episode in episodes for _, tokens in whole_tokens(episode)]
    told = [
        (
            answer.prompt_token_ids,
            choice.token_ids,
            tuple(chance.logprob for chance in choice.logprobs.content),
        )
        for answer in recorder.answers
        for choice in answer.choices
    ]
    assert Counter((one.prompt, one.sampled, one.logprobs) for one in found) == Counter(told)
    for episode in episodes:
        reasons = {fork.reason for fork in token_tree(episode).forks()}
        assert not reasons & {ForkReason.DRIFT, ForkReason.REWRITTEN, ForkReason.TRUNCATED}
    # A grammar renormalises probabilities, which the trainer does not: answers that it constrains are not compared.
    free = [
        tokens
        for episode in episodes
        for record, tokens in whole_tokens(episode)
        if record.id.partition(".")[0] in FREE
    ]
    assert len(free) == 4 * 5
    backbone = LocalBackbone(
        PolicySettings.model_validate({"model": str(folder), "dtype": "float32", "threads": 1})
    )
    rows = [scoring_row(tokens.prompt + tokens.sampled) for tokens in free]
    for tokens, values in zip(free, backbone.log_probs(rows), strict=True):
        apart = np.abs(values[-len(tokens.sampled) :] - np.array(tokens.logprobs))
        assert float(apart.max()) <= 1e-5


CONVERSATIONS: dict[str, tuple[ModelApi, dict[str, Any]]] = {
    "chat/completions": (
        ChatApi(),
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "look", "arguments": '{"q":"größer"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Sure?"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "look", "description": "L.", "parameters": LOOK.schema},
                }
            ],
        },
    ),
    "responses": (
        ResponsesApi(),
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "Weather?"},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q":"größer"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Sure?"},
            ],
        },
    ),
    "messages": (
        MessagesApi(),
        {
            "max_tokens": 5,
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "c1", "name": "look", "input": {"q": "größer"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                        {"type": "text", "text": "Sure?"},
                    ],
                },
            ],
            "tools": [{"name": "look", "description": "L.", "input_schema": LOOK.schema}],
        },
    ),
}
"""Conversations as a client sends them, by API."""


@pytest.mark.promise("gateway:exact:rendered")
@pytest.mark.parametrize("path", CONVERSATIONS)
async def test_a_conversation_has_the_tokens_that_the_engine_renders_in_the_same_api(
    vllm: ModelServer, path: str
) -> None:
    api, given = CONVERSATIONS[path]
    body = {"model": vllm.model, **given}
    call = api.parse(json.dumps(body).encode(), RequestContext(0, "")).call
    settings = ModelSettings.model_validate({"name": vllm.model, "base_url": vllm.url, "api_key": vllm.key})
    headers = {"Authorization": f"Bearer {vllm.key}"}
    async with ModelConnection(settings) as connection, aiohttp.ClientSession(headers=headers) as session:
        own = await connection.engine.render(call.messages, call.tools)
        async with session.post(f"{vllm.url}/{path}/render", json=body) as answer:
            rendered = await answer.json()
    assert own == rendered["token_ids"], rendered
