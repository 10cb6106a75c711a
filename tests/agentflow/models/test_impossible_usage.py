"""Token counts that can't be right are replaced by an estimate, so that budgets hold."""

import json
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentflow.errors import ModelFailure, RunStopped, StopCause
from agentflow.models import Accounts, ModelConnection
from agentflow.models._apis import AnthropicApi, GeminiApi, OllamaApi, OpenAiApi, ProviderApi
from agentflow.models._apis._api import parse_call
from agentflow.runs import estimates_text
from agentflow.trace import Usage
from tests.agentflow.models._serving import call, painter, script, settings
from tests.agentflow.models.test_chat import HELLO, chat

IMPOSSIBLE = ["-24000000000", "10000001", "1" + "0" * 40, "1e400", "0.5", "true", '"12"', "[]"]
TEXT = "a" * 40
ESTIMATE = Usage(1, 26, 11, estimated=1)
"""Of 100 bytes that were sent, and of that text."""


def chat_body(count: str, text: str = TEXT) -> str:
    message = json.dumps({"role": "assistant", "content": text})
    usage = f'{{"prompt_tokens": {count}, "completion_tokens": 7, "total_tokens": {count}}}'
    choice = f'{{"index": 0, "finish_reason": "stop", "message": {message}}}'
    kind = '"id": "1", "object": "chat.completion", "created": 0, "model": "m"'
    return f'{{{kind}, "choices": [{choice}], "usage": {usage}}}'


def body(api: ProviderApi, count: str) -> bytes:
    match api:
        case AnthropicApi():
            usage = f'{{"input_tokens": 5, "output_tokens": {count}}}'
            content = f'[{{"type": "text", "text": "{TEXT}"}}]'
            return f'{{"content": {content}, "usage": {usage}}}'.encode()
        case GeminiApi():
            usage = f'{{"promptTokenCount": {count}, "candidatesTokenCount": 7}}'
            candidates = f'[{{"content": {{"parts": [{{"text": "{TEXT}"}}]}}}}]'
            return f'{{"candidates": {candidates}, "usageMetadata": {usage}}}'.encode()
        case OllamaApi():
            counts = f'"prompt_eval_count": 5, "eval_count": {count}'
            return f'{{"message": {{"content": "{TEXT}"}}, {counts}}}'.encode()
        case _:
            return chat_body(count).encode()


@pytest.mark.promise("models:usage:checked")
@pytest.mark.parametrize(
    "api", [AnthropicApi(), GeminiApi(), OllamaApi(), OpenAiApi()], ids=lambda api: api.name
)
@pytest.mark.parametrize("count", IMPOSSIBLE)
def test_impossible_counts_are_replaced_by_an_estimate(api: ProviderApi, count: str) -> None:
    answer = api.read(body(api, count), 100)
    assert (answer.text, answer.usage) == (TEXT, ESTIMATE)
    assert answer.usage_problem


@pytest.mark.promise("models:usage:checked")
@pytest.mark.parametrize(
    "usage", ["null", "{}", '"lots"', "[]", '{"prompt_tokens": 0, "completion_tokens": 0}']
)
def test_an_answer_without_counts_is_estimated(usage: str) -> None:
    choice = json.dumps({"message": {"content": TEXT}})
    answer = OpenAiApi().read(f'{{"choices": [{choice}], "usage": {usage}}}'.encode(), 100)
    assert answer.usage == ESTIMATE


@pytest.mark.promise("models:usage:checked")
async def test_an_endpoint_with_negative_counts_neither_lifts_a_budget_nor_warns_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    accounts = Accounts(max_tokens=500)
    colour = '{"name": "red", "shade": 3}'
    negative = web.Response(body=chat_body("-24000000000", colour), content_type="application/json")
    async with script(negative) as endpoint, painter(endpoint.url, accounts) as model:
        for _ in range(2):
            completion = await model.complete(call())
            assert completion.usage.prompt_tokens > 50
        assert accounts.by_role["planner"].estimates == 2
        accounts.add("planner", Usage(1, 500, 0))
        assert estimates_text(accounts.by_role) == "2 of 3 token counts are estimates"
        with pytest.raises(RunStopped) as stopped:
            await model.complete(call())
    assert stopped.value.cause is StopCause.BUDGET
    assert caplog.text.count("reported token counts are impossible") == 1


@pytest.mark.promise("models:usage:checked")
async def test_a_gateways_connection_and_openais_client_check_them_too() -> None:
    moves = [
        web.Response(body=chat_body(count), content_type="application/json") for count in ("-5", '"many"')
    ]
    accounts = Accounts()
    async with (
        script(*moves) as endpoint,
        ModelConnection(settings(endpoint.url), environment={}) as connection,
    ):
        answer = await connection.ask(call().messages)
    assert answer.usage.prompt_tokens > 0
    async with script(*moves) as endpoint, chat(endpoint.url, accounts) as client:
        for _ in moves:
            completion: Any = await client.create(messages=HELLO)
            assert completion.usage.prompt_tokens > 0
            assert completion.choices[0].message.content == TEXT
    assert accounts.total.prompt_tokens > 0


@pytest.mark.promise("models:usage:checked")
def test_reports_name_estimated_calls_only_if_there_are_some() -> None:
    assert msgspec.json.encode(Usage(1, 2, 3)) == b'{"calls":1,"prompt_tokens":2,"completion_tokens":3}'
    both = Usage(1, 2, 3) + ESTIMATE
    assert both == msgspec.json.decode(msgspec.json.encode(both), type=Usage) == Usage(2, 28, 14, estimated=1)
    assert (Usage(1) + Usage(1)).estimates == 0
    assert estimates_text({"planner": Usage(1, 2, 3)}) == ""


HOSTILE = {
    "nested": (b'{"x": ' + b"[" * 100_000, "can't be decoded: nested deeper than 100 levels"),
    "half a surrogate pair": (
        chat_body("1", "x").replace('"x"', r'"\ud800"').encode(),
        "can't be decoded: JSON is",
    ),
    "NaN": (
        chat_body("1").replace('"created": 0', '"x": NaN').encode(),
        "can't be decoded: JSON is malformed",
    ),
    "no UTF-8": (chat_body("1", "x").encode().replace(b'"x"', b'"\xff"'), "can't be decoded: not UTF-8 text"),
}


@pytest.mark.promise("models:usage:checked")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_answer_that_no_decoder_takes_is_a_failed_call(kind: str) -> None:
    body, reason = HOSTILE[kind]
    moves = [web.Response(body=body, content_type="application/json") for _ in range(4)]
    async with script(*moves) as endpoint, painter(endpoint.url) as model:
        with pytest.raises((ModelFailure, RunStopped), match=reason):
            await model.complete(call())


@pytest.mark.promise("models:tools")
@pytest.mark.parametrize(
    "value", ["9" * 5000, "[" * 900 + "]" * 900, "[" * 100_000, "NaN", "1e999", r'"\ud800"']
)
def test_arguments_that_could_not_be_recorded_are_none_and_kept_as_text(value: str) -> None:
    written = f'{{"a": {value}}}'
    called = parse_call("1", "search", written)
    assert (called.arguments, called.raw_arguments) == (None, written)
