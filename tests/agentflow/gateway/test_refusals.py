"""Requests that the gateway refuses, with the status and the error format of their API."""

import gzip
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx2
import pytest

from agentflow.gateway import GatewayError, _server
from agentflow.gateway._chat import ChatBody, CompletionsBody
from agentflow.gateway._messages import MessagesBody
from agentflow.gateway._responses import ResponsesBody
from agentflow.gateway._server import MAX_REQUESTS
from tests.agentflow.gateway._scripted_calls import (
    KEY,
    MODEL,
    ScriptedCalls,
    answer,
    raw_client,
    scripted_server,
)

HI = {"role": "user", "content": "Hi"}
CHAT: tuple[str, dict[str, Any]] = ("/v1/chat/completions", {"model": MODEL, "messages": [HI]})
COMPLETIONS: tuple[str, dict[str, Any]] = ("/v1/completions", {"model": MODEL, "prompt": "Hi"})
RESPONSES: tuple[str, dict[str, Any]] = ("/v1/responses", {"model": MODEL, "input": "Hi"})
MESSAGES: tuple[str, dict[str, Any]] = ("/v1/messages", {"model": MODEL, "messages": [HI], "max_tokens": 5})
TOOL = {"type": "function", "function": {"name": "t"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [PICTURE]}]}

REFUSED: list[tuple[tuple[str, dict[str, Any]], dict[str, Any], str]] = [
    (CHAT, {"temprature": 1}, "temprature is unknown; did you mean temperature?"),
    (COMPLETIONS, {"promt": 1}, "promt is unknown; did you mean prompt?"),
    (RESPONSES, {"instruction": "x"}, "instruction is unknown; did you mean instructions?"),
    (MESSAGES, {"stop_sequence": ["x"]}, "stop_sequence is unknown; did you mean stop_sequences?"),
    (CHAT, {"messages": [{**HI, "contnt": 1}]}, "messages[0].contnt is unknown; did you mean content?"),
    (CHAT, {"messages": [{"role": "usr", "content": ""}]}, "messages[0].role: usr is not supported"),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].image_url: no PNG, JPEG, WebP or GIF image"),
    (CHAT, {"messages": [{"role": "system", "content": [IMAGE]}]}, "messages[0].content[0]: image_url is not supported: only the user's messages"),
    (CHAT, {"messages": [{"role": "user", "content": [AUDIO]}]}, "input_audio is not supported: the models of the gateway read text and images"),
    (CHAT, {"messages": []}, "the conversation is empty; add a message"),
    (CHAT, {"messages": "Hi"}, "messages: expected `array`, got `str`"),
    (CHAT, {"n": 0}, "n: expected `int` >= 1"),
    (CHAT, {"temperature": 3}, "temperature: 3.0 is not between 0 and 2"),
    (CHAT, {"max_completion_tokens": 0}, "max_tokens: 0 is less than 1"),
    (CHAT, {"stop": ["a", ""]}, "stop: a stop string is empty; leave it out"),
    (CHAT, {"logprobs": True}, "logprobs is not supported: read them from the tokens of the episode"),
    (CHAT, {"functions": [{}]}, "functions is not supported: use tools"),
    (CHAT, {"modalities": ["audio"]}, "modalities: the model writes text only; leave it out"),
    (CHAT, {"tools": [{"type": "custom"}]}, "tools[0]"),
    (CHAT, {"tools": [TOOL, TOOL]}, "tools: t is listed twice; give each tool its own name"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name: use letters"),
    (CHAT, {"tool_choice": "required"}, "tool_choice: required needs tools; add them"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "T"}}}, "tool_choice: no tool T"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is missing; add it"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt: send one prompt in each request"),
    (COMPLETIONS, {"best_of": 3}, "best_of is not supported: ask for n answers"),
    (COMPLETIONS, {"echo": True}, "echo is not supported: "),
    (RESPONSES, {"background": True}, "background is not supported: wait for the answer"),
    (RESPONSES, {"input": None}, "the conversation is empty; add a message"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type: item_reference is not supported"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0].image_url: the gateway has no files; "),
    (RESPONSES, {"input": [{"role": "user", "content": "Hi", "nme": 1}]}, "input[0].nme is unknown; did you mean "),
    (RESPONSES, {"tools": [{"type": "local_shell"}]}, "tools[0].type: local_shell is not supported; describe the tool"),
    (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing; add it"),
    (RESPONSES, {"text": {"formt": {}}}, "text.formt is unknown; did you mean format?"),
    (MESSAGES, {"max_tokens": None}, "max_tokens is missing; add it"),
    (MESSAGES, {"messages": [HI, {"role": "assistant", "content": "I"}]}, "messages: the last one must be the user's"),
    (MESSAGES, {"messages": [RESULT]}, "messages[0].content[0].content[0].source: no PNG, JPEG, WebP or GIF image"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, "can't be in this message"),
    (MESSAGES, {"mcp_servers": [{}]}, "mcp_servers is not supported: call them in the client, and offer their tools"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: bash_20250124 is not supported"),
    (MESSAGES, {"tool_choice": {"type": "tool"}}, "tool_choice.name is missing; add it"),
]  # fmt: skip


@pytest.mark.promise("gateway:fields:strict")
async def test_an_unknown_or_unsupported_field_is_refused_in_one_line_that_says_what_to_do() -> None:
    calls = ScriptedCalls()
    wrong: list[tuple[str, str]] = []
    async with scripted_server(calls) as url, raw_client(url) as client:
        for (path, body), more, message in REFUSED:
            response = await client.post(path, json={**body, **more})
            shown = response.json()["error"]
            if response.status_code != 400 or message not in shown["message"] or "\n" in shown["message"]:
                wrong.append((message, shown["message"]))
            assert shown["type"] == "invalid_request_error"
    assert wrong == []
    assert calls.calls == []


BODIES = [
    (CHAT, ChatBody),
    (COMPLETIONS, CompletionsBody),
    (RESPONSES, ResponsesBody),
    (MESSAGES, MessagesBody),
]


@pytest.mark.promise("gateway:fields:ignored")
async def test_a_field_without_effect_is_accepted_and_named_in_a_header() -> None:
    calls = ScriptedCalls([answer() for _ in BODIES])
    async with scripted_server(calls) as url, raw_client(url) as client:
        for (path, body), fields in BODIES:
            more = dict.fromkeys(fields.IGNORED, "any")
            nothing = dict.fromkeys(fields.REFUSED)
            response = await client.post(path, json={**body, **more, **nothing, "temperature": 0.5})
            assert response.status_code == 200, response.text
            assert response.headers["x-agentflow-ignored"].split(", ") == list(fields.IGNORED)
            assert response.headers["x-agentflow-overrides"] == "temperature"


@pytest.mark.promise("gateway:fields:hosted_tools")
async def test_a_tool_that_the_provider_would_run_is_left_out_and_named_in_a_header() -> None:
    calls = ScriptedCalls([answer(), answer()])
    async with scripted_server(calls) as url, raw_client(url) as client:
        for path, body in (RESPONSES, MESSAGES):
            response = await client.post(
                path, json={**body, "tools": [{"type": "web_search_1", "name": "w"}]}
            )
            assert response.headers["x-agentflow-ignored"] == "tools.web_search_1"
    assert [call.tools for call in calls.calls] == [(), ()]


@pytest.mark.promise("gateway:fields:ignored")
async def test_names_of_speakers_and_opaque_reasoning_are_named_in_the_header() -> None:
    calls = ScriptedCalls([answer() for _ in range(3)])
    opaque: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    redacted = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    asked: list[tuple[tuple[str, dict[str, Any]], dict[str, Any], str]] = [
        (CHAT, {"messages": [{**HI, "name": "Ann"}]}, "messages.name"),
        (RESPONSES, {"input": [opaque, opaque, HI]}, "input.encrypted_content"),
        (MESSAGES, {"messages": [HI, redacted, HI]}, "messages.redacted_thinking"),
    ]
    async with scripted_server(calls) as url, raw_client(url) as client:
        for (path, body), more, name in asked:
            response = await client.post(path, json={**body, **more})
            assert response.headers["x-agentflow-ignored"] == name


STATUS = [
    (401, "authentication_error", "authentication_error"),
    (403, "permission_error", "permission_error"),
    (404, "not_found_error", "not_found_error"),
    (409, "invalid_request_error", "invalid_request_error"),
    (410, "invalid_request_error", "invalid_request_error"),
    (413, "invalid_request_error", "request_too_large"),
    (429, "rate_limit_error", "rate_limit_error"),
    (500, "server_error", "api_error"),
    (503, "server_error", "overloaded_error"),
]


@pytest.mark.promise("gateway:errors:format")
async def test_an_error_has_the_format_of_its_api() -> None:
    calls = ScriptedCalls(
        [GatewayError(status, "why", code="c") for status, _, _ in STATUS for _ in range(2)]
    )
    async with scripted_server(calls) as url, raw_client(url) as client:
        for status, openai, anthropic in STATUS:
            path, body = CHAT
            response = await client.post(path, json=body)
            expected = {"message": "why", "type": openai, "param": None, "code": "c"}
            assert (response.status_code, response.json()) == (status, {"error": expected})
            # OpenAI's and Anthropic's clients repeat these statuses unless they are told not to.
            assert (response.headers.get("x-should-retry") == "false") is (
                status in (409, 429) or status >= 500
            )
            path, body = MESSAGES
            response = await client.post(path, json=body)
            assert response.json() == {"type": "error", "error": {"type": anthropic, "message": "why"}}


@pytest.mark.promise("gateway:errors:format")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_error_is_internal_and_shows_nothing(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = ScriptedCalls([RuntimeError("a private detail")])
    async with scripted_server(calls) as url, raw_client(url) as client:
        response = await client.post(CHAT[0], json={**CHAT[1], "stream": stream})
    assert response.status_code == 500
    assert "private" not in response.text
    assert "a private detail" in caplog.text


@pytest.mark.promise("gateway:access:key")
async def test_a_key_is_taken_from_two_headers_and_never_from_the_url() -> None:
    calls = ScriptedCalls([answer(), answer()])
    path, body = CHAT
    async with scripted_server(calls) as url, raw_client(url) as client:
        statuses: list[int] = []
        for headers in (
            {"Authorization": f"bearer {KEY}"},
            {"Authorization": "", "x-api-key": KEY},
            {"Authorization": "Bearer"},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": "Bearer af_1_other"},
            {"Authorization": "Bearer \xff\xfe"},
        ):
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            given = [(name.encode(), value) for name, value in sent.items()]
            response = await client.post(f"{path}?key={KEY}&api_key={KEY}", json=body, headers=given)
            statuses.append(response.status_code)
    assert statuses == [200, 200, 401, 401, 401, 401]


@pytest.mark.promise("gateway:access:host")
async def test_a_request_for_another_host_is_refused_on_loopback() -> None:
    async with scripted_server(ScriptedCalls()) as url, raw_client(url) as client:
        statuses = {
            host: (await client.get("/v1/models", headers={"Host": host})).status_code
            for host in (
                "localhost:1",
                "127.0.0.1",
                "[::1]:7",
                "evil.example",
                "127.0.0.1.evil.example:80",
                "a b",
                "[",
            )
        }
    assert statuses == {
        "localhost:1": 200, "127.0.0.1": 200, "[::1]:7": 200, "evil.example": 403, "127.0.0.1.evil.example:80": 403,
        "a b": 403, "[": 403,
    }  # fmt: skip


@pytest.mark.promise("gateway:access:size")
async def test_a_key_has_a_bounded_number_of_requests_and_a_conversation_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_server, "REFUSED_SECONDS", 0.01)
    gate = anyio.Event()
    calls = ScriptedCalls([answer() for _ in range(MAX_REQUESTS)], gate=gate, expected=MAX_REQUESTS)
    path, body = CHAT
    statuses: list[int] = []

    async def ask(client: httpx2.AsyncClient) -> None:
        statuses.append((await client.post(path, json=body)).status_code)

    async with scripted_server(calls) as url, raw_client(url) as client:
        async with anyio.create_task_group() as group:
            for _ in range(MAX_REQUESTS):
                group.start_soon(ask, client)
            await calls.begun.wait()
            for more in (client.get("/v1/models"), client.post("/v1/messages/count_tokens", json=body)):
                refused = await more
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            gate.set()
        assert statuses == [200] * MAX_REQUESTS
        assert (await client.get("/v1/models")).status_code == 200
        refused = await client.post(path, json={**body, "messages": [HI] * 10_001})
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.promise("gateway:access:size")
async def test_a_body_that_is_too_large_or_malformed_is_refused_before_it_is_decoded() -> None:
    calls = ScriptedCalls()
    path, _ = CHAT
    bodies: list[tuple[bytes, int]] = [
        (b'{"model": "' + b"x" * 300_000, 413),
        (b'{"model": [' + b"1," * 60_000, 400),
        (b'{"model": [' + b"1," * 120_000, 413),
        (b'{"messages": ' + b"[" * 50_000, 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (b'"text"', 400),
        (b'{"model": "policy", "messages": [NaN]}', 400),
        (b'{"model": "\xed\xa0\x80", "messages": []}', 400),
        (b'{"model": "\\ud800", "messages": []}', 400),
    ]

    async def pieces(data: bytes) -> AsyncGenerator[bytes]:
        for start in range(0, len(data), 10_000):
            yield data[start : start + 10_000]

    async with scripted_server(calls, max_body=250_000) as url, raw_client(url) as client:
        for body, status in bodies:
            assert (await client.post(path, content=body)).status_code == status, body[:40]
        # Compressed or without a length in a header, the limit holds as well.
        packed = {"Content-Encoding": "gzip"}
        assert (await client.post(path, content=b"no gzip", headers=packed)).status_code == 400
        assert (
            await client.post(path, content=gzip.compress(b" " * 300_000), headers=packed)
        ).status_code == 413
        assert (await client.post(path, content=pieces(bodies[0][0]))).status_code == 413
    assert calls.calls == []


@pytest.mark.promise("gateway:access:model")
async def test_another_model_than_that_of_the_key_is_not_found() -> None:
    async with scripted_server(ScriptedCalls()) as url, raw_client(url) as client:
        for path, body in (
            CHAT,
            COMPLETIONS,
            RESPONSES,
            MESSAGES,
            ("/v1/messages/count_tokens", MESSAGES[1]),
        ):
            response = await client.post(path, json={**body, "model": "other"})
            assert response.status_code == 404
            assert (
                response.json()["error"]["message"]
                == "model: no model other; the model of this key is policy"
            )


@pytest.mark.promise("gateway:access:model")
async def test_any_model_is_answered_if_the_settings_say_so() -> None:
    async with scripted_server(ScriptedCalls(), any_model=True) as url, raw_client(url) as client:
        body = {**MESSAGES[1], "model": "other"}
        assert (await client.post("/v1/messages/count_tokens", json=body)).status_code == 200


@pytest.mark.promise("gateway:apis:rest")
async def test_models_are_listed_tokens_counted_and_the_server_is_found_alive() -> None:
    calls = ScriptedCalls()
    async with scripted_server(calls) as url, raw_client(url) as client:
        assert (await client.head("/")).status_code == 200
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == [MODEL]
        assert (await client.get(f"/v1/models/{MODEL}")).json()["object"] == "model"
        assert (await client.get("/v1/models/other")).status_code == 404
        listed = (await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        assert (listed["data"][0]["type"], listed["has_more"]) == ("model", False)
        body = {name: value for name, value in MESSAGES[1].items() if name != "max_tokens"}
        assert (await client.post("/v1/messages/count_tokens", json=body)).json() == {"input_tokens": 42}
        assert (await client.get("/v1/chat/completions")).status_code == 405
        missing = await client.get("/v1/files/../../etc/passwd")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_path")
    assert calls.calls[0].messages[0].parts[0].text == "Hi"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@pytest.mark.promise("gateway:apis:retries")
async def test_a_retry_of_a_client_is_told_apart_from_an_equal_call() -> None:
    calls = ScriptedCalls([answer(), answer(), answer()])
    path, body = CHAT
    async with scripted_server(calls) as url, raw_client(url) as client:
        for count in ("0", "2", "x" * 5):
            await client.post(path, content=json.dumps(body), headers={"x-stainless-retry-count": count})
    digests = [retry.partition(":")[0] for retry in calls.retries]
    assert len(set(digests)) == 1
    assert [retry.partition(":")[2] for retry in calls.retries] == ["0", "2", "0"]
