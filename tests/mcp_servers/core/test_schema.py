"""Portable JSON schemas."""

from typing import Literal

from pydantic import BaseModel, Field

from mcp_servers.core._tool import portable


class Inner(BaseModel):
    title: str = Field(description="A member that is named like a keyword.")


class Outer(BaseModel):
    inner: Inner | None = None
    choice: Literal["a", "b"] | None = "a"
    number: int | str | None = None
    plain: int = 3
    cells: list[object]


SCHEMA = portable(Outer.model_json_schema())


def test_generated_titles_are_removed_and_members_named_title_stay() -> None:
    assert "title" not in SCHEMA
    definitions = SCHEMA["$defs"]
    assert isinstance(definitions, dict)
    assert definitions["Inner"]["properties"] == {
        "title": {"type": "string", "description": "A member that is named like a keyword."}
    }


def test_an_optional_argument_is_optional_instead_of_null() -> None:
    properties = SCHEMA["properties"]
    assert isinstance(properties, dict)
    assert properties["inner"] == {"$ref": "#/$defs/Inner"}
    assert properties["number"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def test_a_meaningful_default_stays() -> None:
    properties = SCHEMA["properties"]
    assert isinstance(properties, dict)
    assert properties["plain"] == {"type": "integer", "default": 3}
    assert properties["choice"]["default"] == "a"


def test_a_member_of_any_type_lists_all_types() -> None:
    properties = SCHEMA["properties"]
    assert isinstance(properties, dict)
    anything = ["string", "number", "boolean", "object", "array", "null"]
    assert properties["cells"] == {"type": "array", "items": {"anyOf": [{"type": kind} for kind in anything]}}


def test_output_schemas_keep_null() -> None:
    properties = portable(Outer.model_json_schema(), keep_null=True)["properties"]
    assert isinstance(properties, dict)
    assert properties["inner"]["anyOf"] == [{"$ref": "#/$defs/Inner"}, {"type": "null"}]
    assert {"type": "null"} in properties["number"]["anyOf"]
