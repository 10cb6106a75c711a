"""Schemas and validation from typed signatures."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import CallContext, Output, Session
from mcp_servers.core._tool import Signature

Text = Annotated[str, Field(description="A text.")]
Number = Annotated[int | None, Field(description="A number.", ge=1, le=9)]


class Answer(Output):
    """An answer."""

    text: str
    """The text."""


Numbers = Annotated[list[int], Field(description="Numbers.")]
ByName = Annotated[dict[str, int], Field(description="Numbers by name.")]


async def gather(text: Text, many: Numbers = [], named: ByName = {}) -> None:  # noqa: B006
    """Tool with arguments that hold several values."""


async def everything(session: Session, context: CallContext, text: Text, number: Number = None) -> Answer:
    """Tool with every kind of argument."""
    return Answer(text=f"{session}{context}{text}{number}")


def refusal(arguments: dict[str, object]) -> ToolFailure:
    """Return the message with which the arguments are refused."""
    with pytest.raises(ToolFailure) as caught:
        Signature.of(everything).binder("a_tool")(arguments)
    return caught.value


@pytest.mark.promise("mcp:tool:schema")
def test_a_signature_gives_a_schema_with_descriptions_and_without_what_the_table_fills_in() -> None:
    signature = Signature.of(everything)
    assert signature.description == "Tool with every kind of argument."
    assert signature.session_parameter == "session"
    assert signature.context_parameter == "context"
    schema = signature.input_schema
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["text"]
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert properties["text"] == {"type": "string", "description": "A text."}
    assert properties["number"] == {"type": "integer", "minimum": 1, "maximum": 9, "description": "A number."}
    assert properties["session"]["type"] == "string"


def test_the_return_annotation_gives_the_output_schema_with_the_fields_docstrings() -> None:
    schema = Signature.of(everything).output_schema
    assert schema["required"] == ["text"]
    assert schema["properties"] == {"text": {"type": "string", "description": "The text."}}


@pytest.mark.promise("mcp:tool:arguments")
def test_an_unknown_argument_is_refused_with_a_suggestion() -> None:
    failure = refusal({"tex": "x"})
    assert failure.kind is ErrorKind.BAD_ARGUMENTS
    assert "unknown argument 'tex'. Did you mean 'text'?" in failure.message
    assert "argument 'text' is missing." in failure.message
    assert "\n" not in failure.message


@pytest.mark.promise("mcp:tool:many_problems")
@pytest.mark.parametrize(
    ("arguments", "described"),
    [
        ({f"unknown{number}": 0 for number in range(200_000)}, "unknown argument 'unknown3'"),
        ({"text": "x", **{f"unknown{number}": 0 for number in range(200_000)}}, "argument 'unknown4'"),
        ({"text": "x", "many": ["x"] * 200_000}, "argument 'many.4': Input should be a valid integer"),
        ({"text": "x", "z" * 1_000_000: 0}, "unknown argument 'zzz"),
        ({"text": "x", "named": {"z" * 1_000_000: "x"}}, "argument 'named.zzz"),
    ],
    ids=["many unknown", "all but one unknown", "many wrong", "long name", "long nested name"],
)
def test_the_first_five_of_many_problems_are_described_and_the_others_counted(
    arguments: dict[str, object], described: str
) -> None:
    with pytest.raises(ToolFailure) as caught:
        Signature.of(gather).binder("a_tool")(arguments)
    message = caught.value.message
    assert described in message
    assert len(message) < 1000
    if len(arguments) > 100 or "many" in arguments:
        assert message.count("argument '") == 5
        assert message.endswith(f"And {200_000 - 5 + ('text' not in arguments)} more problems.")


def test_a_wrong_type_and_a_value_out_of_range_are_refused_by_name() -> None:
    assert "argument 'text': Input should be a valid string." in refusal({"text": 5}).message
    assert (
        "argument 'number': Input should be less than or equal to 9."
        in refusal({"text": "x", "number": 10}).message
    )


def test_session_is_among_the_suggested_argument_names() -> None:
    assert "Did you mean 'session'?" in refusal({"text": "x", "sesion": "s"}).message


def test_arguments_left_out_take_their_defaults() -> None:
    assert Signature.of(everything).binder("a_tool")({"text": "x"}) == {"text": "x", "number": None}


def test_a_result_that_is_not_an_object_is_wrapped() -> None:
    async def count() -> list[int]:
        """Count."""
        return [1, 2]

    signature = Signature.of(count)
    assert signature.output_schema["required"] == ["result"]
    assert signature.dump([1, 2]) == {"result": [1, 2]}


def test_a_none_result_is_wrapped() -> None:
    async def nothing() -> None:
        """Do nothing."""

    assert Signature.of(nothing).dump(None) == {"result": None}


def test_a_dataclass_is_dumped_as_an_object() -> None:
    @dataclass
    class Point:
        x: int
        y: int

    async def where() -> Point:
        """Say where."""
        return Point(1, 2)

    function = where
    function.__annotations__["return"] = Point
    assert Signature.of(function).dump(Point(1, 2)) == {"x": 1, "y": 2}


def test_a_function_without_a_docstring_is_refused_as_a_tool() -> None:
    async def silent() -> None: ...

    with pytest.raises(TypeError, match="needs a docstring"):
        Signature.of(silent)


def test_an_argument_without_a_description_is_refused() -> None:
    async def vague(text: str) -> None:
        """Be vague."""

    with pytest.raises(TypeError, match="argument 'text' needs Annotated"):
        Signature.of(vague)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.integers())))
def test_any_arguments_are_accepted_or_refused_in_one_line(
    arguments: dict[str, object],
) -> None:
    bind = Signature.of(everything).binder("a_tool")
    try:
        taken = bind(arguments)
    except ToolFailure as failure:
        assert failure.kind is ErrorKind.BAD_ARGUMENTS
    else:
        assert taken["text"] == arguments["text"]
