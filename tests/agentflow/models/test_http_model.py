"""A model at an endpoint: a call returns a valid answer or fails with a closed kind."""

from contextlib import AsyncExitStack

import anyio
import msgspec
import pytest
from aiohttp import web

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models import Accounts, Call, ImagePart, Message, Prices, Sampling, TextPart
from agentflow.serving._server import kept_port
from agentflow.testing import fake_endpoint
from agentflow.trace import Plan, Usage
from tests.agentflow.models._serving import Colour, HastyClock, Move, call, painter, refuses, says, script

RED = Colour("red", 3)


@pytest.mark.promise("models:typed")
async def test_an_answer_comes_back_decoded_with_its_text_its_usage_and_its_model() -> None:
    async with script(says()) as endpoint, painter(endpoint.url) as model:
        completion = await model.complete(call())
    assert completion.value == RED
    assert completion.text == '{"name": "red", "shade": 3}'
    assert completion.usage == Usage(1, 10, 5)
    assert (completion.model, completion.finish) == ("painter-1", "stop")


@pytest.mark.promise("models:typed")
async def test_free_text_is_returned_unchanged() -> None:
    asked = Call(
        role="planner",
        messages=(
            Message(
                "user",
                (TextPart("Hello"), TextPart("you")),
            ),
        ),
        reply=str,
    )
    async with script(says("Good day.")) as endpoint, painter(endpoint.url) as model:
        assert (await model.complete(asked)).value == "Good day."
    assert endpoint.bodies[0] == {
        "model": "painter",
        "messages": [{"role": "user", "content": "Hello\nyou"}],
    }


@pytest.mark.promise("models:schema")
async def test_the_schema_is_sent_under_the_name_of_the_reply_type() -> None:
    asked = Call(role="planner", messages=call().messages, reply=Colour, schema={"type": "object"})
    async with script(says()) as endpoint, painter(endpoint.url) as model:
        await model.complete(call())
        await model.complete(asked)
    own, given = (body["response_format"]["json_schema"] for body in endpoint.bodies)
    assert own["name"] == given["name"] == "colour"
    assert own["schema"]["properties"].keys() == {"name", "shade"}
    assert given["schema"] == {"type": "object"}


@pytest.mark.promise("models:sampling")
async def test_a_calls_sampling_overrides_the_settings() -> None:
    own = Sampling(temperature=0.0, stop=("END",), extra={"top_k": 4})
    asked = Call(role="planner", messages=call().messages, reply=Colour, sampling=own)
    async with (
        script(says()) as endpoint,
        painter(endpoint.url, temperature=0.7, max_tokens=50, extra_body={"min_p": 0.1}) as model,
    ):
        await model.complete(call())
        await model.complete(asked)
    first, second = endpoint.bodies
    assert (first["temperature"], first["max_tokens"], first["min_p"]) == (0.7, 50, 0.1)
    assert (second["temperature"], second["max_tokens"], second["stop"]) == (0.0, 50, ["END"])
    assert (second["min_p"], second["top_k"]) == (0.1, 4)
    assert "seed" not in first


FINAL = [
    pytest.param(refuses(400, "bad"), ModelFailureKind.BAD_REQUEST, id="400"),
    pytest.param(refuses(422, "bad"), ModelFailureKind.BAD_REQUEST, id="422"),
    pytest.param(refuses(400, "x", "context_length_exceeded"), ModelFailureKind.TOO_LONG, id="context"),
    pytest.param(
        refuses(400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
        ModelFailureKind.TOO_LONG,
        id="tokens",
    ),
    pytest.param(refuses(413, "large"), ModelFailureKind.TOO_LONG, id="413"),
    pytest.param(refuses(400, "x", "content_filter"), ModelFailureKind.REFUSED, id="filtered prompt"),
    pytest.param(says('{"na', finish="length"), ModelFailureKind.TOO_LONG, id="cut"),
    pytest.param(says("", finish="content_filter"), ModelFailureKind.REFUSED, id="filtered"),
    pytest.param(says(None, refusal="I would rather not."), ModelFailureKind.REFUSED, id="refused"),
]


@pytest.mark.promise("models:failure_kinds")
@pytest.mark.parametrize(("move", "kind"), FINAL)
async def test_permanent_errors_fail_at_once(move: Move, kind: ModelFailureKind) -> None:
    async with script(move) as endpoint, painter(endpoint.url) as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert failed.value.kind is kind
    assert failed.value.attempts == len(endpoint.bodies) == 1
    assert "\n" not in failed.value.message


PASSING = [
    pytest.param(refuses(408), ModelFailureKind.UNAVAILABLE, id="408"),
    pytest.param(refuses(409), ModelFailureKind.UNAVAILABLE, id="409"),
    pytest.param(refuses(429), ModelFailureKind.RATE_LIMITED, id="429"),
    pytest.param(refuses(500), ModelFailureKind.UNAVAILABLE, id="500"),
    pytest.param(refuses(503), ModelFailureKind.UNAVAILABLE, id="503"),
    pytest.param(None, ModelFailureKind.UNAVAILABLE, id="no answer"),
    pytest.param(says(""), ModelFailureKind.GARBAGE, id="empty"),
    pytest.param(says("red, I think"), ModelFailureKind.GARBAGE, id="prose"),
    pytest.param(says('{"surprise": true}'), ModelFailureKind.GARBAGE, id="other shape"),
    pytest.param(says('{"name": "red", "shade": "deep"}'), ModelFailureKind.GARBAGE, id="other type"),
]


@pytest.mark.promise("models:retries")
@pytest.mark.parametrize(("move", "kind"), PASSING)
async def test_temporary_errors_are_retried_up_to_four_attempts(move: Move, kind: ModelFailureKind) -> None:
    async with script(move) as endpoint, painter(endpoint.url) as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert failed.value.kind is kind
    assert failed.value.attempts == len(endpoint.bodies) == 4
    assert model.statistics()[3:6] == (1, 4, 1)


@pytest.mark.promise("models:retries")
@pytest.mark.parametrize(("move", "kind"), PASSING)
async def test_a_good_answer_after_bad_ones_is_the_answer(move: Move, kind: ModelFailureKind) -> None:
    async with script(move, move, move, says()) as endpoint, painter(endpoint.url) as model:
        assert (await model.complete(call())).value == RED, kind
    assert len(endpoint.bodies) == 4


@pytest.mark.promise("models:retries")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuses(200), "can't be decoded"),
        (web.Response(text="<html>busy</html>"), "a web page instead of JSON"),
        (web.Response(text='{"id": "1", "cho'), "can't be decoded"),
        (web.Response(), "can't be decoded"),
    ],
    ids=["other protocol", "page", "cut", "nothing"],
)
async def test_an_answer_of_another_protocol_is_an_unavailable_endpoint(
    answer: web.Response, message: str
) -> None:
    async with script(answer) as endpoint, painter(endpoint.url, max_attempts=2) as model:
        with pytest.raises(ModelFailure, match=message) as failed:
            await model.complete(call())
    assert (failed.value.kind, failed.value.attempts) == (ModelFailureKind.UNAVAILABLE, 2)


@pytest.mark.promise("models:deadline")
async def test_a_call_ends_at_its_deadline() -> None:
    async with (
        fake_endpoint(delay_ms=60_000) as url,
        painter(url, clock=SYSTEM_CLOCK, call_seconds=0.05) as model,
    ):
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert (failed.value.kind, failed.value.attempts) == (ModelFailureKind.TIMEOUT, 1)


@pytest.mark.promise("models:denied")
@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_a_refused_key_or_unknown_model_ends_the_run(status: int) -> None:
    async with script(refuses(status, "not you")) as endpoint, painter(endpoint.url) as model:
        with pytest.raises(RunStopped, match=f"can't be used: HTTP {status}: not you") as stopped:
            await model.complete(call())
    assert stopped.value.cause is StopCause.MODEL
    assert "OPENAI_API_KEY" in stopped.value.message
    assert len(endpoint.bodies) == 1


@pytest.mark.promise("models:denied")
async def test_a_used_up_account_is_not_retried() -> None:
    move = refuses(429, "pay first", "insufficient_quota")
    async with script(move) as endpoint, painter(endpoint.url) as model:
        with pytest.raises(
            RunStopped, match="pay first; raise the quota of OPENAI_API_KEY, then run the same command"
        ):
            await model.complete(call())
    assert len(endpoint.bodies) == 1


@pytest.mark.promise("models:gone")
async def test_an_endpoint_that_was_never_reachable_ends_the_run_at_once() -> None:
    with kept_port("127.0.0.1") as port:
        async with painter(f"http://127.0.0.1:{port}/v1", max_attempts=2) as model:
            with pytest.raises(
                RunStopped, match=r"can't be reached: no answer: Connection refused; .*base_url"
            ) as stopped:
                await model.complete(call())
    assert stopped.value.cause is StopCause.MODEL


@pytest.mark.promise("models:gone")
async def test_sixteen_failed_calls_in_a_row_end_the_run() -> None:
    async with AsyncExitStack() as leaving:
        port = leaving.enter_context(kept_port("127.0.0.1"))
        async with script(says(), port=port) as endpoint:
            model = await leaving.enter_async_context(painter(endpoint.url, max_attempts=1))
            await model.complete(call())
        for _ in range(15):
            with pytest.raises(ModelFailure) as failed:
                await model.complete(call())
            assert failed.value.message.startswith("no answer: ")
        with pytest.raises(RunStopped, match="16 calls in a row failed") as stopped:
            await model.complete(call())
    assert stopped.value.cause is StopCause.MODEL


@pytest.mark.promise("models:gone")
async def test_one_answer_resets_the_count_of_failed_calls() -> None:
    moves = [refuses(500)] * 15 + [says()] + [refuses(500)]
    async with script(*moves) as endpoint, painter(endpoint.url, max_attempts=1) as model:
        for number in range(31):
            if number == 15:
                await model.complete(call())
                continue
            with pytest.raises(ModelFailure):
                await model.complete(call())


@pytest.mark.promise("models:pictures")
async def test_an_image_is_sent_as_a_data_url_with_text_parts() -> None:
    parts = (TextPart("What is it?"), ImagePart(b"\x89PNG"))
    asked = Call(role="planner", messages=(Message("user", parts),), reply=str)
    async with script(says("A picture.")) as endpoint, painter(endpoint.url) as model:
        await model.complete(asked)
    assert endpoint.bodies[0]["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]


@pytest.mark.promise("models:pictures")
async def test_a_large_image_is_sent() -> None:
    asked = Call(role="planner", messages=(Message("user", (ImagePart(bytes(3_000_000)),)),), reply=str)
    async with script(refuses(500), says("Dark.")) as endpoint, painter(endpoint.url) as model:
        assert (await model.complete(asked)).value == "Dark."


@pytest.mark.promise("models:pictures")
async def test_a_model_without_vision_refuses_images_in_one_line() -> None:
    asked = Call(role="planner", messages=(Message("user", (ImagePart(b"png"),)),), reply=str)
    async with script(says()) as endpoint, painter(endpoint.url, vision=False) as model:
        with pytest.raises(ModelFailure, match="painter accepts no images") as failed:
            await model.complete(asked)
    assert failed.value.kind is ModelFailureKind.BAD_REQUEST
    assert (failed.value.attempts, endpoint.bodies) == (0, [])


@pytest.mark.promise("models:usage")
async def test_usage_is_accounted_by_role_and_model_even_for_unusable_answers() -> None:
    accounts = Accounts()
    prices = Prices(input=1_000_000, output=2_000_000)
    moves = [says("garbage"), says(), says()]
    async with script(*moves) as endpoint, painter(endpoint.url, accounts, prices=prices) as model:
        completion = await model.complete(call())
        await model.complete(call(role="generator"))
    assert completion.usage == Usage(2, 20, 10), "what it took to get there"
    assert accounts.by_role == {"planner": Usage(2, 20, 10), "generator": Usage(1, 10, 5)}
    assert accounts.by_model == {"painter": accounts.total} == {"painter": Usage(3, 30, 15)}
    assert accounts.cost == 30 + 2 * 15


@pytest.mark.promise("models:usage")
async def test_a_failed_call_reports_its_usage() -> None:
    async with script(says("garbage")) as endpoint, painter(endpoint.url, max_attempts=3) as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    failure = failed.value
    assert (failure.answers, failure.prompt_tokens, failure.completion_tokens) == (3, 30, 15)


@pytest.mark.promise("models:usage")
async def test_usage_is_estimated_for_an_endpoint_that_counts_no_tokens() -> None:
    body = {"choices": [{"message": {"content": "x" * 400}}]}
    accounts = Accounts()
    asked = Call(role="planner", messages=(Message("user", (TextPart("y" * 4000),)),), reply=str)
    silent = says()
    silent.body = msgspec.json.encode(body)
    async with script(silent) as endpoint, painter(endpoint.url, accounts) as model:
        await model.complete(asked)
    assert accounts.total.completion_tokens == 101
    assert 1000 < accounts.total.prompt_tokens < 1100


@pytest.mark.promise("models:budgets")
async def test_a_used_up_budget_ends_the_run_before_the_next_request() -> None:
    accounts = Accounts(max_tokens=30)
    async with script(says()) as endpoint, painter(endpoint.url, accounts) as model:
        await model.complete(call())
        await model.complete(call())
        with pytest.raises(RunStopped, match="the budget of 30 tokens is used up") as stopped:
            await model.complete(call())
    assert stopped.value.cause is StopCause.BUDGET
    assert len(endpoint.bodies) == 2


@pytest.mark.promise("models:budgets")
async def test_a_queued_call_makes_no_request_once_the_budget_is_used_up() -> None:
    accounts = Accounts(max_tokens=30)
    ends: list[str] = []

    async with script(says()) as endpoint, painter(endpoint.url, accounts, max_concurrency=1) as model:

        async def ask() -> None:
            try:
                await model.complete(call())
                ends.append("answered")
            except RunStopped:
                ends.append("stopped")

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
    assert sorted(ends) == ["answered"] * 2 + ["stopped"] * 3
    assert len(endpoint.bodies) == 2


@pytest.mark.promise("models:retries")
async def test_with_30_percent_faults_a_call_makes_at_most_four_requests() -> None:
    accounts, failures = Accounts(), list[ModelFailure]()
    schema = {
        "properties": {
            "proposals": {"minItems": 1, "items": {"properties": {"tool": {"const": "rag_search"}}}}
        }
    }
    async with (
        fake_endpoint(faults=0.3, fault_seed=5) as url,
        painter(url, accounts, clock=HastyClock()) as model,
    ):

        async def ask(number: int) -> None:
            said = (Message("user", (TextPart(f"Plan number {number}"),)),)
            try:
                completion = await model.complete(
                    Call(role="planner", messages=said, reply=Plan, schema=schema)
                )
                assert len(completion.value.proposals) == 1
            except ModelFailure as failure:
                failures.append(failure)

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(ask, number)
        made = model.statistics()
    assert made.calls == 200
    assert made.attempts <= 4 * made.calls
    assert made.failures == len(failures) <= 10
    assert all(failure.attempts == 4 for failure in failures)
