"""Structured output: formats, fallbacks and decoding of answers."""

import re
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import PROVIDERS, Accounts, Call, Message, ModelSettings, TextPart, make_model
from agentflow.models._answer_format import bounded, decode_answer, extract_answer, is_strict, schema_of
from agentflow.models._request_error import RequestError
from agentflow.questions import Readings
from agentflow.testing import fake_endpoint
from agentflow.trace import Judgement, Plan
from tests.agentflow.models._serving import Body, Colour, call, painter, refuses, says, script

ANSWER = '{"name": "red", "shade": 3}'


def takes(*types: str) -> Any:  # noqa: ANN401
    """Return an endpoint that accepts these formats only."""

    def answer(body: Body) -> web.Response:
        format = body.get("response_format", {}).get("type", "text")
        return (
            says() if format in types else refuses(400, f"'response_format.type' {format} is not supported")
        )

    return answer


@pytest.mark.promise("models:fallback")
@pytest.mark.parametrize(
    ("types", "formats", "fallbacks"),
    [
        (("json_schema", "json_object", "text"), ["json_schema"] * 2, 0),
        (("json_object", "text"), ["json_schema", "json_object", "json_object"], 2),
        (("text",), ["json_schema", "json_object", "text", "text"], 3),
    ],
)
async def test_a_refused_format_is_remembered_and_every_fallback_counted(
    types: tuple[str, ...], formats: list[str], fallbacks: int
) -> None:
    async with script(takes(*types)) as endpoint, painter(endpoint.url) as model:
        for _ in range(2):
            assert (await model.complete(call())).value == Colour("red", 3)
    assert [body.get("response_format", {}).get("type", "text") for body in endpoint.bodies] == formats
    assert model.statistics().fallbacks == fallbacks


@pytest.mark.promise("models:fallback")
async def test_a_looser_format_appends_the_schema_to_the_prompt() -> None:
    async with script(takes("text")) as endpoint, painter(endpoint.url) as model:
        await model.complete(call("Which colour?"))
    last = endpoint.bodies[-1]["messages"][-1]["content"]
    assert last.startswith("Which colour?\n\nAnswer with one JSON value and nothing else.")
    assert '"shade":{"type":"integer"}' in last


@pytest.mark.promise("models:fallback")
async def test_fallbacks_count_towards_the_attempts_of_a_call() -> None:
    moves = [refuses(400, "no json_schema here"), refuses(500), says("prose"), says("prose")]
    async with script(*moves) as endpoint, painter(endpoint.url) as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert (failed.value.kind, len(endpoint.bodies)) == (ModelFailureKind.GARBAGE, 4)


@pytest.mark.promise("models:fallback")
async def test_a_configured_format_does_not_fall_back() -> None:
    async with script(takes("text")) as endpoint, painter(endpoint.url, structured="json_schema") as model:
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call())
    assert (failed.value.kind, len(endpoint.bodies)) == (ModelFailureKind.BAD_REQUEST, 1)
    async with script(takes("text")) as endpoint, painter(endpoint.url, structured="text") as model:
        assert (await model.complete(call())).value == Colour("red", 3)
    assert model.statistics().fallbacks == 0


@pytest.mark.promise("models:fallback")
async def test_a_model_trained_on_the_format_gets_no_schema() -> None:
    async with script(says()) as endpoint, painter(endpoint.url, structured="known") as model:
        assert (await model.complete(call("Which colour?"))).value == Colour("red", 3)
    (body,) = endpoint.bodies
    assert "response_format" not in body
    assert [message["content"] for message in body["messages"]] == ["Which colour?"]


@pytest.mark.promise("models:fallback")
@pytest.mark.parametrize("structured", ["json_object", "text"])
async def test_the_fake_endpoint_plays_its_roles_without_schemas(structured: str) -> None:
    schema = {
        "properties": {
            "proposals": {"minItems": 2, "items": {"properties": {"tool": {"const": "rag_search"}}}}
        }
    }
    asked = Call(role="planner", messages=(Message("user", (TextPart("Plan."),)),), reply=Plan, schema=schema)
    async with fake_endpoint(structured=structured) as url, painter(url) as model:
        assert len((await model.complete(asked)).value.proposals) == 2


@pytest.mark.promise("models:strict_answer")
@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"\n {ANSWER} \n",
        f"```json\n{ANSWER}\n```",
        f"```\n{ANSWER}```",
        f"  ```json \n{ANSWER}\n```\n",
    ],
)
def test_one_json_value_in_at_most_one_fence_is_accepted(text: str) -> None:
    assert decode_answer(text, Colour) == Colour("red", 3)


@pytest.mark.promise("models:strict_answer")
@pytest.mark.parametrize(
    "text",
    [
        f"Sure! {ANSWER}",
        f"{ANSWER} is my answer.",
        f"{ANSWER}\n{ANSWER}",
        f"Here:\n```json\n{ANSWER}\n```",
        f"```json\n{ANSWER}\n```\nDone.",
        f"```json\n{ANSWER}\n```\n```json\n{ANSWER}\n```",
        ANSWER[:-1],
        '{"name": "red"}',
        "null",
        "```",
        "```json\n```",
    ],
)
def test_text_around_the_json_value_is_rejected(text: str) -> None:
    with pytest.raises(RequestError) as failed:
        decode_answer(text, Colour)
    assert (failed.value.kind, failed.value.retry) == (ModelFailureKind.GARBAGE, True)


@pytest.mark.promise("models:extracted")
@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"Sure! {ANSWER}",
        f"{ANSWER} is my answer.",
        f"Here:\n```json\n{ANSWER}\n```\nDone.",
        f"A {{banana}} first: {ANSWER}",
        f'{{"other": 1}} and then {ANSWER}',
        f"{ANSWER}\nThat is, {ANSWER}",
    ],
)
def test_the_only_json_object_of_a_type_is_taken_from_a_text(text: str) -> None:
    assert extract_answer(text, Colour) == Colour("red", 3)


@pytest.mark.promise("models:extracted")
@pytest.mark.parametrize(
    "text",
    [
        f'{ANSWER} or {{"name": "blue", "shade": 1}}',
        f'{{"outer": {ANSWER}, "cut": "here',
        '{"outer": ' * 3_000,
        "{" * 3_000 + ANSWER,
        "Sure! Here is a banana.",
        "{}",
        "",
    ],
)
def test_a_text_without_one_json_object_of_a_type_is_rejected(text: str) -> None:
    with pytest.raises(RequestError) as failed:
        extract_answer(text, Colour)
    assert (failed.value.kind, failed.value.retry) == (ModelFailureKind.GARBAGE, True)


def ignores(body: Body) -> web.Response:
    """Answer as a model behind an endpoint that ignores `response_format`: in prose, with JSON once it is asked for."""
    asked = "JSON schema of" in body["messages"][-1]["content"]
    return says(f"Sure!\n```json\n{ANSWER}\n```\nAnything else?" if asked else "Sure! It is red.")


def formats_of(bodies: list[Body]) -> list[str]:
    return [body.get("response_format", {}).get("type", "text") for body in bodies]


@pytest.mark.promise("models:ignored_format")
async def test_an_ignored_format_is_learned_and_the_schema_is_in_the_prompt_from_then_on() -> None:
    async with script(ignores) as endpoint, painter(endpoint.url) as model:
        for _ in range(3):
            assert (await model.complete(call())).value == Colour("red", 3)
    # A fence is no proof that JSON was enforced, and no fault either: the value is in the text.
    assert formats_of(endpoint.bodies) == ["json_schema", "json_object", "text", "text"]
    assert all(len(body["messages"]) == 1 for body in endpoint.bodies)


@pytest.mark.promise("models:ignored_format")
@pytest.mark.parametrize(
    "first", [says("Sure! Here is a"), says("{}"), says("Sure! And so on and", finish="length")]
)
async def test_prose_another_shape_and_cut_prose_show_that_a_schema_is_ignored(first: web.Response) -> None:
    async with script(first, says()) as endpoint, painter(endpoint.url) as model:
        assert (await model.complete(call())).value == Colour("red", 3)
    assert formats_of(endpoint.bodies) == ["json_schema", "json_object"]


@pytest.mark.promise("models:ignored_format")
async def test_an_endpoint_that_obeyed_keeps_its_format_and_gets_the_same_request_again() -> None:
    moves = [says(), says("prose"), says(), says(""), says()]
    async with script(*moves) as endpoint, painter(endpoint.url) as model:
        for _ in range(3):
            await model.complete(call())
        assert model.statistics().fallbacks == 0
    assert len(endpoint.bodies) == 5
    assert all(body == endpoint.bodies[0] for body in endpoint.bodies)


@pytest.mark.promise("models:repair")
async def test_an_unusable_answer_is_repaired_once_with_its_mistake() -> None:
    moves = [says('{"name": "red"}'), says("Oh, sorry."), says()]
    async with script(*moves) as endpoint, painter(endpoint.url, structured="text") as model:
        assert (await model.complete(call())).value == Colour("red", 3)
    plain, repair, again = (body["messages"] for body in endpoint.bodies)
    assert plain == again
    assert [message["role"] for message in repair] == ["user", "assistant", "user"]
    assert repair[1]["content"] == '{"name": "red"}'
    assert "missing required field `shade`" in repair[2]["content"]
    assert "JSON schema of `colour`" in repair[2]["content"]


@given(st.text())
def test_any_text_is_decoded_or_rejected_as_garbage(text: str) -> None:
    try:
        assert isinstance(decode_answer(text, Colour), Colour)
    except RequestError as error:
        assert error.kind is ModelFailureKind.GARBAGE


class Nested(Struct, forbid_unknown_fields=True):
    inner: Colour


@pytest.mark.promise("models:schema")
def test_a_schema_has_an_object_at_its_top() -> None:
    for kind in (Colour, Plan, Readings, Judgement, Nested):
        assert schema_of(kind)["type"] == "object"
    assert schema_of(Nested)["$defs"].keys() == {"Colour"}
    assert "$defs" not in schema_of(Colour)


@pytest.mark.promise("models:schema")
def test_strict_mode_requires_closed_objects_and_required_fields() -> None:
    closed: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    outer = {**closed, "properties": {"a": {"type": "array", "items": closed, "minItems": 2}}}
    assert is_strict(closed)
    assert is_strict(outer)
    assert not is_strict({**closed, "required": []})
    assert not is_strict({**closed, "additionalProperties": True})
    assert not is_strict({**outer, "properties": {"a": {"anyOf": [closed, {"type": "object"}]}}})
    assert not is_strict({**closed, "properties": {"a": {"type": "string", "default": "x"}}})


@pytest.mark.promise("models:fallback")
async def test_deepseek_gets_json_object_with_the_schema_in_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with script(says()) as endpoint:
        there = structs.replace(PROVIDERS["deepseek"], url=endpoint.url)
        monkeypatch.setitem(PROVIDERS, "deepseek", there)  # pyright: ignore[reportArgumentType]
        made = make_model(
            ModelSettings(name="deepseek/chat"), Accounts(), environment={"DEEPSEEK_API_KEY": "k"}
        )
        async with made as model:
            assert (await model.complete(call())).value == Colour("red", 3)
            assert model.statistics().fallbacks == 0
    assert endpoint.bodies[0]["response_format"] == {"type": "json_object"}
    assert "JSON schema of `colour`" in endpoint.bodies[0]["messages"][-1]["content"]


@pytest.mark.promise("models:schema:bounded")
@pytest.mark.parametrize(
    ("own", "shortest", "longest"),
    [
        ({}, 0, 9),
        ({"minLength": 1}, 1, 9),
        ({"minLength": 2, "maxLength": 4}, 2, 4),
        ({"minLength": 12}, 12, 12),
    ],
)
def test_a_free_text_is_bounded_by_one_pattern_with_its_own_limits(
    own: dict[str, int], shortest: int, longest: int
) -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", **own}, "kind": {"enum": ["a"]}}}
    properties = bounded(schema, 9)["properties"]
    assert properties["kind"] == {"enum": ["a"]}
    assert properties["q"].keys() == {"type", "pattern"}
    accepts = re.compile(properties["q"]["pattern"]).search
    assert [number for number in range(20) if accepts("x" * number)] == [*range(shortest, longest + 1)]
    assert not accepts('"' * shortest + '"')


@pytest.mark.promise("models:schema:bounded")
@pytest.mark.parametrize(
    ("shortest", "longest"), [(0, 128), (0, 129), (0, 300), (5, 150), (130, 150), (300, 300), (0, 256)]
)
def test_a_long_bound_repeats_no_character_class_more_often_than_engines_allow(
    shortest: int, longest: int
) -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "minLength": shortest}}}
    pattern = bounded(schema, longest)["properties"]["q"]["pattern"]
    accepts = re.compile(pattern).search
    assert [number for number in range(500) if accepts("x" * number)] == [*range(shortest, longest + 1)]
    assert max(int(number) for number in re.findall(r"(\d+)}", pattern)) <= 128
