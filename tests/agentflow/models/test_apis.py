"""Every provider is called through its own API, with the same results."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped
from agentflow.models import (
    Accounts,
    ApiName,
    Call,
    ImagePart,
    Message,
    ModelSettings,
    OpenModel,
    Sampling,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
    make_model,
)
from agentflow.trace import Usage
from tests.agentflow.models._providers import KEY, SPEECHES, Anthropic, Gemini, Provider, Turn, provider
from tests.agentflow.models._serving import Colour, HastyClock, call

RED = Colour("red", 3)
ANSWER = Turn('{"name": "red", "shade": 3}')
VERSION = {"AZURE_OPENAI_API_VERSION": "2025-04-01-preview"}
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"const": "red"},
        "shade": {"type": "integer", "minimum": 1, "description": "How deep."},
        "also": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 2},
    },
    "required": ["name", "shade", "also"],
    "additionalProperties": False,
}
SEARCH = ToolSpec(
    "rag_search", "Looks it up.", {"type": "object", "properties": {"query": {"type": "string"}}}
)
QUESTION = Message("user", (TextPart("How tall is it?"),))

each = pytest.mark.parametrize("api", SPEECHES)


@asynccontextmanager
async def asking(
    api: ApiName,
    served: Provider,
    accounts: Accounts | None = None,
    clock: HastyClock | None = None,
    **more: Any,  # noqa: ANN401
) -> AsyncGenerator[OpenModel]:
    """Open a model at that endpoint."""
    settings = ModelSettings.model_validate(
        {"name": "painter", "base_url": served.url, "api": api, "api_key": KEY, **more}
    )
    made = make_model(settings, accounts or Accounts(), environment=VERSION, clock=clock or HastyClock())
    async with made as model:
        yield model


def free(*messages: Message, **more: Any) -> Call[str]:  # noqa: ANN401
    return Call(role="planner", messages=messages, reply=str, **more)


@pytest.mark.promise("models:apis")
@each
async def test_every_api_returns_a_typed_answer(api: ApiName) -> None:
    accounts = Accounts()
    async with provider(SPEECHES[api]()) as served, asking(api, served, accounts) as model:
        completion = await model.complete(call())
    assert (completion.value, completion.model, completion.finish) == (RED, "painter-1", "stop")
    assert accounts.total == completion.usage == Usage(1, 10, 5)
    assert len(served.bodies) == 1


def _schema_at(api: ApiName, body: dict[str, Any]) -> dict[str, Any]:
    match api:
        case "anthropic":
            return body["output_config"]["format"]["schema"]
        case "gemini":
            return body["generationConfig"]["responseJsonSchema"]
        case "ollama":
            return body["format"]
        case _:
            return body["response_format"]["json_schema"]["schema"]


@pytest.mark.promise("models:apis")
@each
async def test_every_api_enforces_the_schema_in_its_own_way(api: ApiName) -> None:
    asked = Call(role="planner", messages=(QUESTION,), reply=Colour, schema=CLOSED)
    async with provider(SPEECHES[api]()) as served, asking(api, served) as model:
        assert (await model.complete(asked)).value == RED
        assert model.statistics().fallbacks == 0
    schema = _schema_at(api, served.bodies[0])
    assert schema["required"] == ["name", "shade", "also"]
    shade = schema["properties"]["shade"]
    if api == "anthropic":
        # A grammar has no bounds: they are told in words.
        assert shade == {"type": "integer", "description": 'How deep. {"minimum":1}'}
    else:
        assert shade["minimum"] == 1


@pytest.mark.promise("models:apis")
@each
async def test_system_text_and_sampling_go_into_the_fields_of_each_api(api: ApiName) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=99, stop=("END",))
    said = free(Message("system", (TextPart("Be brief."),)), QUESTION, sampling=sampling)
    async with provider(SPEECHES[api](), Turn("42 m")) as served, asking(api, served) as model:
        assert (await model.complete(said)).value == "42 m"
    written = repr(served.bodies[0])
    for value in ("Be brief.", "How tall is it?", "0.5", "0.9", "99", "END"):
        assert written.count(value) == 1


@pytest.mark.promise("models:apis")
@each
async def test_every_api_gets_images_in_its_own_format(api: ApiName) -> None:
    shown = free(Message("user", (TextPart("What is it?"), ImagePart(b"\x89PNG"))))
    async with provider(SPEECHES[api](), Turn("A picture.")) as served, asking(api, served) as model:
        assert (await model.complete(shown)).value == "A picture."
    assert "iVBORw==" in repr(served.bodies[0])


@pytest.mark.promise("models:tools")
@each
async def test_a_model_can_call_several_tools_and_gets_each_result(api: ApiName) -> None:
    turns = [
        Turn(
            "Let me see.",
            (("c1", "rag_search", '{"query": "x"}'), ("c2", "rag_search", "{}")),
            state="sealed",
        ),
        Turn("42 m"),
    ]
    async with provider(SPEECHES[api](), *turns) as served, asking(api, served) as model:
        first = await model.complete(free(QUESTION, tools=(SEARCH,)))
        assert [(one.name, one.arguments) for one in first.calls] == [
            ("rag_search", {"query": "x"}),
            ("rag_search", {}),
        ]
        assert (first.value, first.finish) == ("Let me see.", "tool_calls")
        ids = [one.id for one in first.calls]
        assert len(set(ids)) == 2
        if api not in ("gemini", "ollama"):
            assert ids == ["c1", "c2"]
        replies = (
            ToolReply(ids[0], "rag_search", (TextPart("It is tall."), ImagePart(b"\x89PNG"))),
            ToolReply(ids[1], "rag_search", (TextPart("No query."),), failed=True),
        )
        history = (
            QUESTION,
            Message("assistant", (TextPart(first.text), *first.calls)),
            Message("user", replies),
        )
        second = await model.complete(free(*history, tools=(SEARCH,)))
    assert (second.value, second.calls, second.finish) == ("42 m", (), "stop")
    written = repr(served.bodies[1])
    for value in ("Let me see.", "It is tall.", "No query.", "iVBORw=="):
        assert value in written
    if api != "ollama":
        assert "sealed" in written, "what the provider wants back goes back"


@pytest.mark.promise("models:tools")
@each
async def test_a_tool_call_without_text_is_an_answer(api: ApiName) -> None:
    turn = Turn(calls=(("c1", "rag_search", '{"query": "x"}'),))
    async with provider(SPEECHES[api](), turn) as served, asking(api, served) as model:
        completion = await model.complete(free(QUESTION, tools=(SEARCH,)))
        assert (completion.value, len(completion.calls)) == ("", 1)
        said = Message("assistant", completion.calls)
        reply = ToolReply(completion.calls[0].id, "rag_search", (TextPart("Tall."),))
        if api != "gemini":
            # Going on without the signature is refused there.
            await model.complete(
                free(QUESTION, said, Message("user", (reply, TextPart("Go on."))), tools=(SEARCH,))
            )


@pytest.mark.promise("models:tools")
@each
async def test_tools_can_be_listed_without_being_callable(api: ApiName) -> None:
    async with provider(SPEECHES[api](), Turn("42 m")) as served, asking(api, served) as model:
        await model.complete(free(QUESTION, tools=(SEARCH,), may_call=False))
    body = served.bodies[0]
    choice = body.get("tool_choice") or body.get("toolConfig")
    assert "none" in repr(choice).lower()
    assert (choice is None) is (api == "ollama")
    assert ("tools" in body) is (api != "ollama")


@pytest.mark.promise("models:tools")
async def test_arguments_that_are_not_an_object_are_kept_as_text() -> None:
    turn = Turn(
        calls=(("c1", "rag_search", '{"query": '), ("c2", "rag_search", "[1]"), ("c3", "rag_search", ""))
    )
    async with provider(SPEECHES["openai"](), turn) as served, asking("openai", served) as model:
        completion = await model.complete(free(QUESTION, tools=(SEARCH,)))
        assert [(one.arguments, one.raw_arguments) for one in completion.calls] == [
            (None, '{"query": '),
            (None, "[1]"),
            ({}, ""),
        ]
        replies = tuple(
            ToolReply(one.id, one.name, (TextPart("?"),), failed=True) for one in completion.calls
        )
        said = Message("assistant", completion.calls)
        await model.complete(free(QUESTION, said, Message("user", replies), tools=(SEARCH,)))
    sent = served.bodies[1]["messages"][1]["tool_calls"]
    assert [one["function"]["arguments"] for one in sent] == ['{"query": ', "[1]", "{}"]


@pytest.mark.promise("models:tools")
@each
async def test_every_api_accepts_text_arguments_of_another_providers_model(
    api: ApiName,
) -> None:
    broken = ToolCall("c1", "rag_search", None, '{"query": ', {"thoughtSignature": "sealed"})
    said = (QUESTION, Message("assistant", (broken,)), Message("user", (ToolReply("c1", "rag_search", ()),)))
    async with provider(SPEECHES[api](), Turn("42 m")) as served, asking(api, served) as model:
        assert (await model.complete(free(*said, tools=(SEARCH,)))).value == "42 m"
    assert '{"query": ' in repr(served.bodies[0])


@pytest.mark.promise("models:tools")
async def test_tools_and_a_typed_answer_together_are_refused() -> None:
    asked = Call(role="planner", messages=(QUESTION,), reply=Colour, tools=(SEARCH,))
    async with provider(SPEECHES["openai"]()) as served, asking("openai", served) as model:
        with pytest.raises(ValueError, match="tools"):
            await model.complete(asked)
    assert served.bodies == []


ENDS: list[tuple[Turn | int, ModelFailureKind]] = [
    (Turn('{"na', finish="length"), ModelFailureKind.TOO_LONG),
    (400, ModelFailureKind.BAD_REQUEST),
]


@pytest.mark.promise("models:apis")
@each
@pytest.mark.parametrize(("turn", "kind"), ENDS, ids=["cut", "400"])
async def test_permanent_errors_fail_at_once_in_every_api(
    api: ApiName, turn: Turn | int, kind: ModelFailureKind
) -> None:
    async with provider(SPEECHES[api](), turn) as served, asking(api, served) as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert (failed.value.kind, len(served.bodies)) == (kind, 1)


@pytest.mark.promise("models:apis")
@pytest.mark.parametrize("api", [name for name in SPEECHES if name != "ollama"])
async def test_a_refusal_is_not_reported_as_garbage(api: ApiName) -> None:
    async with (
        provider(SPEECHES[api](), Turn("No.", finish="filtered")) as served,
        asking(api, served) as model,
    ):
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert (failed.value.kind, len(served.bodies)) == (ModelFailureKind.REFUSED, 1)


@pytest.mark.promise("models:apis")
@each
@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_temporary_errors_are_retried_in_every_api(api: ApiName, status: int) -> None:
    clock = HastyClock()
    async with (
        provider(SPEECHES[api](), status, ANSWER) as served,
        asking(api, served, clock=clock) as model,
    ):
        assert (await model.complete(call())).value == RED
    assert len(served.bodies) == 2
    if (api, status) == ("gemini", 429):
        assert clock.slept == [2.5], "the time that its body names"


@pytest.mark.promise("models:apis")
@each
async def test_a_wrong_key_ends_the_run_in_every_api(api: ApiName) -> None:
    async with provider(SPEECHES[api]()) as served, asking(api, served, api_key="other") as model:
        with pytest.raises(RunStopped, match="can't be used"):
            await model.complete(call())
    assert len(served.bodies) == 1


@pytest.mark.promise("models:apis")
@each
async def test_an_unknown_model_ends_the_run_in_every_api(api: ApiName) -> None:
    async with provider(SPEECHES[api](), 404) as served, asking(api, served) as model:
        with pytest.raises(RunStopped, match="check the model's name"):
            await model.complete(call())


@pytest.mark.promise("models:apis")
async def test_anthropic_enforces_an_open_schema_by_a_tool() -> None:
    open_schema = {**CLOSED, "properties": {**CLOSED["properties"], "more": {"type": "object"}}}
    asked = Call(role="planner", messages=(QUESTION,), reply=Colour, schema=open_schema)
    async with provider(Anthropic()) as served, asking("anthropic", served) as model:
        completion = await model.complete(asked)
    assert (completion.value, completion.calls, completion.finish) == (RED, (), "stop")
    assert served.bodies[0]["tool_choice"] == {"type": "tool", "name": "give_answer"}
    assert served.bodies[0]["tools"][0]["input_schema"] == open_schema


@pytest.mark.promise("models:fallback")
async def test_an_anthropic_model_without_grammars_falls_back_to_a_tool() -> None:
    asked = Call(role="planner", messages=(QUESTION,), reply=Colour, schema=CLOSED)
    async with provider(Anthropic(grammars=False)) as served, asking("anthropic", served) as model:
        for _ in range(2):
            assert (await model.complete(asked)).value == RED
    assert ["output_config" in body for body in served.bodies] == [True, False, False]


@pytest.mark.promise("models:apis")
async def test_a_temperature_selects_the_older_anthropic_version() -> None:
    async with (
        provider(Anthropic(), Turn("Red.")) as served,
        asking("anthropic", served) as plain,
        asking("anthropic", served, temperature=0.2) as warm,
    ):
        await plain.complete(free(QUESTION))
        await warm.complete(free(QUESTION))
    assert [one["anthropic-version"] for one in served.headers] == ["2026-10-21", "2023-06-01"]
    assert ("temperature" in served.bodies[0], served.bodies[1]["temperature"]) == (False, 0.2)


@pytest.mark.promise("models:apis")
async def test_a_prompt_that_gemini_blocks_is_refused() -> None:
    class Blocking(Gemini):
        def says(self, turn: Turn) -> dict[str, Any]:
            del turn
            return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": "painter-1"}

    async with provider(Blocking()) as served, asking("gemini", served) as model:
        with pytest.raises(ModelFailure, match="blocked: PROHIBITED_CONTENT") as failed:
            await model.complete(call())
    assert failed.value.kind is ModelFailureKind.REFUSED


NOTHING: list[Callable[[Turn], dict[str, Any]]] = [
    lambda _: {},
    lambda _: {"error": None},
    lambda _: {"model": 1},
]


@pytest.mark.promise("models:apis")
@each
@pytest.mark.parametrize("says", NOTHING, ids=["nothing", "error", "other"])
async def test_an_undecodable_answer_is_an_unavailable_endpoint_in_every_api(
    api: ApiName, says: Callable[[Turn], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = SPEECHES[api]()
    monkeypatch.setattr(speech, "says", says)
    async with provider(speech) as served, asking(api, served, max_attempts=2) as model:
        with pytest.raises(ModelFailure, match="the endpoint's answer can't be decoded") as failed:
            await model.complete(call())
    assert (failed.value.kind, len(served.bodies)) == (ModelFailureKind.UNAVAILABLE, 2)


@pytest.mark.promise("models:sampling")
@each
async def test_extra_body_is_merged_in_every_api(api: ApiName) -> None:
    name = {"gemini": "generationConfig", "ollama": "options"}.get(api)
    extra: dict[str, Any] = {name: {"topK": 4} if api == "gemini" else {"top_k": 4}} if name else {"seed": 4}
    if api == "anthropic":
        extra = {"stop_sequences": ["END"]}
    async with (
        provider(SPEECHES[api](), Turn("Red.")) as served,
        asking(api, served, extra_body=extra, max_tokens=7) as model,
    ):
        await model.complete(free(QUESTION))
    body = served.bodies[0]
    assert body == {**body, **extra} if name is None else {**body[name], **extra[name]} == body[name]
    assert "7" in repr(body)
