"""Encoding and decoding of each API, without an endpoint."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.models import Completion, ToolSpec
from agentflow.models._answer_format import schema_of
from agentflow.models._apis import (
    AnthropicApi,
    GeminiApi,
    OllamaApi,
    OpenAiApi,
    ProviderApi,
)
from agentflow.models._apis._api import is_closed, simplified, without_const
from agentflow.questions import Readings
from agentflow.trace import Judgement
from tests.agentflow.models._providers import expect_grammar

DIALECTS: list[ProviderApi] = [AnthropicApi(), GeminiApi(), OllamaApi(), OpenAiApi()]
WORDS = [
    "arguments", "candidates", "choices", "content", "function", "functionCall", "input", "logprobs", "message", "name",
    "parts", "promptFeedback", "stop_reason", "text", "tool_calls", "tool_use", "type", "usage",
]  # fmt: skip
each = pytest.mark.parametrize("api", DIALECTS, ids=lambda api: api.name)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=25,
)


@pytest.mark.promise("models:apis")
@each
@settings(deadline=None)
@given(value=values)
def test_any_body_is_decoded_or_refused(api: ProviderApi, value: object) -> None:
    with contextlib.suppress(msgspec.MsgspecError):
        assert isinstance(api.read(msgspec.json.encode(value), 100), Completion)


LISTED = [1, 2]
NOTHING: dict[str, Any] = {"name": "look", "arguments": {}}
WRITTEN = {"name": "look", "arguments": "[1,2]"}
BAD: list[tuple[ProviderApi, Any]] = [
    (AnthropicApi(), {"content": [{"type": "tool_use", "id": "1", "name": "look", "input": LISTED}]}),
    (OllamaApi(), {"message": {"tool_calls": [{"function": WRITTEN}]}}),
    (OpenAiApi(), {"choices": [{"message": {"tool_calls": [{"function": WRITTEN}]}}]}),
]
NAMELESS: list[tuple[ProviderApi, Any]] = [
    (GeminiApi(), {"candidates": [{"content": {"parts": [{"functionCall": {"name": "look"}}] * 2}}]}),
    (OllamaApi(), {"message": {"tool_calls": [{"function": NOTHING}] * 2}}),
    (OpenAiApi(), {"choices": [{"message": {"tool_calls": [{"function": NOTHING}] * 2}}]}),
]


@pytest.mark.promise("models:tools")
@pytest.mark.parametrize(("api", "body"), BAD)
def test_arguments_that_are_not_an_object_keep_their_text(api: ProviderApi, body: object) -> None:
    [call] = api.read(msgspec.json.encode(body), 100).calls
    assert (call.name, call.arguments, call.raw_arguments) == ("look", None, "[1,2]")
    assert call.id


@pytest.mark.promise("models:tools")
@pytest.mark.parametrize(("api", "body"), NAMELESS)
def test_calls_without_ids_get_ids_derived_from_the_answer(api: ProviderApi, body: object) -> None:
    written = msgspec.json.encode(body)
    ids = [call.id for call in api.read(written, 100).calls]
    assert len(set(ids)) == 2
    assert ids == [call.id for call in api.read(written, 100).calls]


@pytest.mark.promise("models:schema")
@pytest.mark.parametrize("kind", [Readings, Judgement, ToolSpec])
def test_our_schemas_are_simplified_for_grammars(kind: type[object]) -> None:
    schema = schema_of(kind)
    if is_closed(schema):
        expect_grammar(simplified(schema))
    assert is_closed(schema) is (kind is not ToolSpec), "a schema within may hold anything"


@pytest.mark.promise("models:schema")
def test_keywords_without_a_grammar_move_into_the_description() -> None:
    inner = {"type": "string", "format": "regex", "maxLength": 3, "description": "Three.", "default": "x"}
    listed = {"type": "array", "items": {"oneOf": [inner, {"const": None}]}, "minItems": 4}
    schema = {"$schema": "x", "type": "object", "properties": {"const": listed}, "$defs": {"a": inner}}
    text = {"type": "string", "description": 'Three. {"format":"regex","maxLength":3}'}
    said = simplified(schema)
    assert said["properties"]["const"] == {
        "type": "array",
        "items": {"anyOf": [text, {"const": None}]},
        "description": '{"minItems":4}',
    }
    assert (said["$defs"], said["additionalProperties"]) == ({"a": text}, False)
    assert "$schema" not in said


@pytest.mark.promise("models:schema")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}},
        {"type": "array", "items": {"type": "object"}},
        {"anyOf": [{"type": "null"}, {"type": "object"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    ],
)
def test_an_open_object_can_not_become_a_grammar(schema: dict[str, Any]) -> None:
    assert not is_closed(schema)


@pytest.mark.promise("models:schema")
def test_const_becomes_an_enum_of_one_value() -> None:
    schema = {
        "type": "object",
        "properties": {"const": {"const": "red"}, "b": {"anyOf": [{"const": 1}], "items": {"const": 2}}},
        "additionalProperties": {"const": 3},
    }
    assert without_const(schema) == {
        "type": "object",
        "properties": {"const": {"enum": ["red"]}, "b": {"anyOf": [{"enum": [1]}], "items": {"enum": [2]}}},
        "additionalProperties": {"enum": [3]},
    }
