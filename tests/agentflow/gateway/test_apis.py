"""Model APIs of the gateway with the real `openai` client and with plain HTTP."""

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from openai import APIError, AsyncOpenAI, BadRequestError

from agentflow.gateway import GatewayError
from agentflow.models import Message, TextPart, ToolCall, ToolReply
from tests.agentflow.gateway._scripted_calls import (
    KEY,
    MODEL,
    ScriptedCalls,
    answer,
    call,
    raw_client,
    scripted_server,
)

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionStreamOptionsParam
    from openai.types.responses import Response

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {}},
}


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


async def post(url: str, path: str, body: object, **headers: str) -> tuple[int, Any, dict[str, str]]:
    async with raw_client(url, **headers) as client:
        response = await client.post(path, content=json.dumps(body))
        return response.status_code, response.json(), dict(response.headers)


def events_of(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream: name and data."""
    found: list[tuple[str, Any]] = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


EQUAL = [
    Message("system", (TextPart("Be brief."),)),
    Message("user", (TextPart("Weather?"),)),
    Message("assistant", (ToolCall("call_1", "weather", {"city": "Rome"}, '{"city":"Rome"}'),)),
    Message("user", (ToolReply("call_1", "weather", (TextPart("sunny"),)),)),
]
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
    ],
    "tools": [{"type": "function", "function": WEATHER}],
}
RESPONSES: dict[str, Any] = {
    "model": MODEL,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ],
    "tools": [{"type": "function", **WEATHER, "strict": True}],
}
MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 50,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=42;"},
        {"type": "text", "text": "Be brief."},
    ],
    "messages": [
        {"role": "user", "content": "Weather?\n<total_tokens>400 tokens left</total_tokens>\n"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}]},
    ],
    "tools": [
        {"name": "weather", "description": WEATHER["description"], "input_schema": WEATHER["parameters"]},
        {"type": "web_search_20260101", "name": "web_search"},
    ],
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


@pytest.mark.promise("gateway:apis:equal")
async def test_equal_conversations_in_different_apis_give_the_same_call() -> None:
    calls = ScriptedCalls([answer(0, "Sunny."), answer(1, "Sunny."), answer(2, "Sunny.")])
    async with scripted_server(calls) as url:
        for path, body in BODIES.items():
            status, _, _ = await post(url, path, body)
            assert status == 200
    chat, responses, messages = calls.calls
    assert list(chat.messages) == list(responses.messages) == EQUAL
    # The user's line break stays: only the volatile line is removed.
    assert messages.messages[1] == Message("user", (TextPart("Weather?\n"),))
    assert [*messages.messages[:1], *messages.messages[2:]] == [*EQUAL[:1], *EQUAL[2:]]
    assert chat.tools == responses.tools == messages.tools
    assert messages.removed == 2
    assert calls.received == ["c0.0", "c1.0", "c2.0"]


ANSWER = answer(0, "Let me see.", call("call_2", "weather", city="Rome"), reasoning="Rome, then.")


@pytest.mark.promise("gateway:apis:chat")
@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_bring_text_reasoning_tool_calls_and_usage(stream: bool) -> None:
    calls = ScriptedCalls([ANSWER, answer(0, "Two."), answer(0, "Three.", finish="length", cached_tokens=4)])
    async with scripted_server(calls) as url, client_of(url) as client:
        if stream:
            options: ChatCompletionStreamOptionsParam = {"include_usage": True}
            async with client.chat.completions.stream(
                model=MODEL, messages=CHAT["messages"], tools=CHAT["tools"], stream_options=options
            ) as events:
                said: ChatCompletion = await events.get_final_completion()
        else:
            said = await client.chat.completions.create(
                model=MODEL, messages=CHAT["messages"], tools=CHAT["tools"]
            )
        (choice,) = said.choices
        assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
        assert choice.message.model_dump()["reasoning_content"] == "Rome, then."
        (called,) = choice.message.tool_calls or []
        assert called.type == "function"
        assert (called.id, called.function.name) == ("call_2", "weather")
        assert json.loads(called.function.arguments) == {"city": "Rome"}
        assert said.usage is not None
        assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (7, 3)
        two = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Go"}], n=2
        )
    assert [each.message.content for each in two.choices] == ["Two.", "Three."]
    assert [each.finish_reason for each in two.choices] == ["stop", "length"]
    assert two.usage is not None
    assert (two.usage.prompt_tokens, two.usage.completion_tokens) == (7, 6)
    assert two.usage.prompt_tokens_details is not None
    assert two.usage.prompt_tokens_details.cached_tokens == 4
    assert calls.received == ["c0.0"] * 3


@pytest.mark.promise("gateway:apis:responses")
@pytest.mark.parametrize("stream", [False, True])
async def test_responses_bring_items_in_order_and_can_be_continued(stream: bool) -> None:
    calls = ScriptedCalls([ANSWER, answer(1, "Sunny.")])
    async with scripted_server(calls) as url, client_of(url) as client:
        if stream:
            async with client.responses.stream(
                model=MODEL, instructions="Be brief.", input=RESPONSES["input"], tools=RESPONSES["tools"]
            ) as events:
                numbers = [event.sequence_number async for event in events]
                first: Response = await events.get_final_response()
            assert numbers == list(range(len(numbers)))
        else:
            first = await client.responses.create(
                model=MODEL, instructions="Be brief.", input=RESPONSES["input"], tools=RESPONSES["tools"]
            )
        reasoning, message, called = first.output
        assert reasoning.type == "reasoning"
        assert [thought.text for thought in reasoning.content or []] == ["Rome, then."]
        assert message.type == "message"
        assert first.output_text == "Let me see."
        assert called.type == "function_call"
        assert (called.call_id, json.loads(called.arguments)) == ("call_2", {"city": "Rome"})
        assert first.usage is not None
        assert (first.status, first.usage.total_tokens) == ("completed", 10)
        second = await client.responses.create(
            model=MODEL, instructions="Be kind.", input="Thanks", previous_response_id=first.id
        )
        with pytest.raises(BadRequestError, match="previous_response_id"):
            await client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_other_c0.0")
        with pytest.raises(BadRequestError, match="previous_response_id"):
            unknown = first.id.replace("c0.0", "c9.0")
            await client.responses.create(model=MODEL, input="Hi", previous_response_id=unknown)
    assert second.output_text == "Sunny."
    # The instructions of the first request do not apply to the second.
    assert [message.parts[0] for message in calls.calls[1].messages if message.role == "system"] == [
        TextPart("Be kind.")
    ]
    assert calls.calls[1].messages[1:4] == tuple(EQUAL[1:])
    assert calls.calls[1].messages[-1] == Message("user", (TextPart("Thanks"),))


@pytest.mark.promise("gateway:apis:messages")
async def test_messages_bring_thinking_text_and_tool_use_in_one_body_or_in_events() -> None:
    calls = ScriptedCalls([ANSWER, ANSWER, answer(0, "a", stop="END"), answer(0, "b", finish="length")])
    async with scripted_server(calls) as url:
        _, body, _ = await post(url, "/v1/messages?beta=true", MESSAGES)
        async with raw_client(url) as client:
            streamed = events_of((await client.post("/v1/messages", json={**MESSAGES, "stream": True})).text)
        _, stopped, _ = await post(url, "/v1/messages", {**MESSAGES, "stop_sequences": ["END"]})
        _, cut, _ = await post(url, "/v1/messages", MESSAGES)
    thinking, text, used = body["content"]
    assert (thinking["thinking"], text["text"]) == ("Rome, then.", "Let me see.")
    assert used == {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"city": "Rome"}}
    assert (body["stop_reason"], body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (
        "tool_use",
        7,
        3,
    )
    assert [name for name, _ in streamed] == [data["type"] for _, data in streamed]
    assert [name for name, _ in streamed if name.startswith("message")] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    assert rebuilt(streamed) == body["content"]
    assert streamed[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")
    assert cut["stop_reason"] == "max_tokens"


def rebuilt(events: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return the content of a message from its events, as Anthropic's client does."""
    blocks: list[dict[str, Any]] = []
    for name, data in events:
        if name == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append({**data["content_block"], "json": ""})
        elif name == "content_block_delta":
            delta = data["delta"]
            kind = delta.pop("type")
            if kind == "input_json_delta":
                blocks[-1]["json"] += delta["partial_json"]
            else:
                for field, piece in delta.items():
                    blocks[-1][field] += piece
    for block in blocks:
        if written := block.pop("json"):
            block["input"] = json.loads(written)
    return blocks


@pytest.mark.promise("gateway:apis:completions")
async def test_completions_take_text_or_ids_and_give_n_answers() -> None:
    calls = ScriptedCalls([answer(0, "one"), answer(0, "two"), answer(0, "three")])
    async with scripted_server(calls) as url, client_of(url) as client:
        both = await client.completions.create(model=MODEL, prompt=[1, 2, 3], n=2, stop="\n")
        stream = await client.completions.create(model=MODEL, prompt="Once", stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
    assert [choice.text for choice in both.choices] == ["one", "two"]
    assert [call.prompt for call in calls.calls] == [(1, 2, 3), "Once"]
    assert calls.calls[0].sampling.stop == ("\n",)
    assert "".join(pieces) == "three"


@pytest.mark.promise("gateway:stream:text")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_text_is_streamed_while_it_is_sampled_and_ends_after_the_record(path: str) -> None:
    calls = ScriptedCalls([answer(0, "Hello world.")], pieces=["Hello", " world"], gate=anyio.Event())
    said = {"model": MODEL, "stream": True}
    body = {
        "/v1/completions": {**said, "prompt": "Say hello"},
        "/v1/responses": {**said, "input": "Say hello"},
    }.get(path, {**said, "max_tokens": 9, "messages": [{"role": "user", "content": "Say hello"}]})
    assert calls.gate is not None
    async with (
        scripted_server(calls) as url,
        raw_client(url) as client,
        client.stream("POST", path, json=body) as response,
    ):
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if "world" in text and not calls.gate.is_set():
                assert calls.received == []
                calls.gate.set()
    shown = events_of(text)
    assert (
        shown[-1] in [("", "[DONE]"), ("message_stop", {"type": "message_stop"})]
        or shown[-1][0] == "response.completed"
    )
    assert text.count("Hello") >= 1
    assert "".join(pieces_of(shown)) == "Hello world."
    assert calls.received == ["c0.0"]


def pieces_of(events: list[tuple[str, Any]]) -> list[str]:
    """Return the pieces of text in a stream of any API."""
    found: list[str] = []
    for name, data in events:
        if name == "content_block_delta":
            found.append(data["delta"]["text"])
        elif name == "response.output_text.delta":
            found.append(data["delta"])
        elif not name and data != "[DONE]":
            found += [one.get("text") or one.get("delta", {}).get("content") or "" for one in data["choices"]]
    return found


@pytest.mark.promise("gateway:stream:pings")
async def test_pings_keep_a_stream_with_tools_open_until_the_answer_is_parsed() -> None:
    calls = ScriptedCalls([ANSWER, ANSWER], gate=anyio.Event())
    assert calls.gate is not None
    async with scripted_server(calls, ping_seconds=0.001) as url, raw_client(url) as client:
        for path, ping in (("/v1/messages", 'data: {"type":"ping"}'), ("/v1/chat/completions", ": ping")):
            calls.gate = anyio.Event()
            async with client.stream("POST", path, json={**BODIES[path], "stream": True}) as response:
                text = ""
                async for piece in response.aiter_text():
                    text += piece
                    if text.count(ping) >= 2:
                        calls.gate.set()
            assert "weather" in text.partition(ping)[2]


@pytest.mark.promise("gateway:stream:errors")
async def test_an_error_has_its_status_before_the_first_event_and_is_an_event_after_it() -> None:
    refusal = GatewayError(429, "too many calls in flight", code="too_many", retry_after=1.5)
    calls = ScriptedCalls([refusal, refusal, refusal])
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    async with scripted_server(calls) as url:
        status, shown, headers = await post(url, "/v1/chat/completions", body)
        assert (status, shown["error"]["type"], headers["retry-after"]) == (429, "rate_limit_error", "2")
        calls.pieces = ["He"]
        async with raw_client(url) as client:
            text = (await client.post("/v1/chat/completions", json=body)).text
            assert events_of(text)[-1][1]["error"]["message"] == "too many calls in flight"
            text = (await client.post("/v1/messages", json={**body, "max_tokens": 5})).text
            assert events_of(text)[-1][0] == "error"
    assert calls.received == []


@pytest.mark.promise("gateway:stream:errors")
async def test_the_client_raises_an_error_that_comes_after_the_first_event() -> None:
    calls = ScriptedCalls([GatewayError(502, "the engine died") for _ in range(3)], pieces=["He"])
    async with scripted_server(calls) as url, client_of(url) as client:
        hi: list[Any] = [{"role": "user", "content": "Hi"}]
        streams: list[Any] = [
            await client.chat.completions.create(model=MODEL, messages=hi, stream=True),
            await client.completions.create(model=MODEL, prompt="Hi", stream=True),
            await client.responses.create(model=MODEL, input="Hi", stream=True),
        ]
        for stream in streams:
            with pytest.raises(APIError, match="the engine died"):
                async for _ in stream:
                    pass
    assert calls.received == []


@pytest.mark.promise("gateway:stream:leaves")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_client_leaves_is_cancelled_and_not_delivered(stream: bool) -> None:
    calls = ScriptedCalls([answer(0, "late")], gate=anyio.Event())
    async with scripted_server(calls) as url, raw_client(url) as client, anyio.create_task_group() as group:
        group.start_soon(lambda: client.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
        await calls.begun.wait()
        group.cancel_scope.cancel()
    assert calls.cancelled == 1
    assert calls.received == []


@pytest.mark.promise("gateway:stream:leaves")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_client_leaves_while_it_is_sent_counts_as_not_delivered(stream: bool) -> None:
    calls = ScriptedCalls([answer(0, "x" * 32_000_000)])
    async with scripted_server(calls) as url:
        body = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
        async with (
            raw_client(url) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            assert response.status_code == 200
    assert (calls.received, calls.lost) == ([], ["c0.0"])
