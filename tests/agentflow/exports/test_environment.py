"""Environments for trainers: the tools of a sandbox as typed methods."""

import inspect
import json
from typing import Any, Literal, get_type_hints

import pytest

from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.exports import SandboxEnvironments
from agentflow.exports._environment import tool_method
from mcp_servers import Tool
from mcp_servers.core import Hints


def a_tool(schema: dict[str, object], description: str = "Do it.") -> Tool:
    """Return a tool with that schema."""

    async def invoke() -> None:
        pass

    return Tool(
        backend="odd",
        verb="do",
        title="Do",
        description=description,
        input_schema=schema,
        output_schema=None,
        hints=Hints(),
        bind=dict,
        invoke=invoke,
        dump=lambda _: {},
    )


@pytest.mark.promise("exports:environments")
def test_each_environment_has_tools_with_types_and_a_session_of_its_own() -> None:
    with SandboxEnvironments(backends=["bash"], tools=["bash:run"]) as environments:
        one, other = environments(), environments()
        public = {name for name, _ in inspect.getmembers(type(one), inspect.isfunction) if name[0] != "_"}
        assert public == {"bash_run", "reset"}
        run: Any = vars(type(one))["bash_run"]
        assert run.__doc__.startswith("Run a bash command")
        assert "Args:\n    command: Command, pipeline or whole script to run." in run.__doc__
        assert inspect.signature(run).parameters["command"].default is inspect.Parameter.empty
        assert get_type_hints(run)["timeout"] is float

        def listed(environment: object) -> str:
            return json.loads(run(environment, command="touch here; ls"))["stdout"]

        assert listed(one) == "here\n"
        assert json.loads(run(other, command="ls"))["stdout"] == ""
        vars(type(one).__mro__[1])["reset"](one, prompt=[], references=["42"])
        assert json.loads(run(one, command="ls"))["stdout"] == ""
        # A model writes bad arguments: the result says so, and the training continues.
        assert run(one, command=3).startswith("bad_arguments")
        assert run(one, nonsense=3).startswith("bad_arguments")


@pytest.mark.promise("exports:environments")
@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, str),
        ({"type": "array", "items": {"type": "integer"}}, list[int]),
        ({"type": "array"}, list),
        ({"type": "object", "properties": {"deep": {"type": "string"}}}, dict),
        ({"enum": ["a", "b"]}, Literal["a", "b"]),
        ({"type": ["string", "null"]}, str | None),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, int | float),
        ({"anyOf": [{"$ref": "#/$defs/odd"}, {"type": "number"}]}, Any),
        ({}, Any),
        (True, Any),
    ],
)
def test_arguments_of_tools_have_the_types_of_their_schema(schema: object, kind: object) -> None:
    method = tool_method(a_tool({"type": "object", "properties": {"given": schema}}))
    assert get_type_hints(method)["given"] == kind


@pytest.mark.promise("exports:environments")
def test_optional_arguments_follow_and_text_of_a_tool_forges_no_section() -> None:
    properties = {"late": {"type": "string", "description": "Two\nlines."}, "first": {"type": "string"}}
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": ["first"]}
    method = tool_method(a_tool(schema, "Do it.\n\nArgs:\n    first: a forgery\nReturns:\n    nothing"))
    assert list(inspect.signature(method).parameters) == ["self", "first", "late"]
    assert method.__doc__ is not None
    assert method.__doc__.count("Args:") == 1
    assert "Returns:" not in method.__doc__
    assert method.__doc__.endswith("first: first\n    late: Two lines.")


@pytest.mark.promise("exports:environments")
def test_environments_without_a_tool_or_with_a_tool_without_arguments_by_name_are_refused() -> None:
    for patterns, error, text in (
        (["bash:nothing"], ToolFailure, "no tool 'bash:nothing'. Did you mean"),
        ([], ConfigurationError, "no usable tool fits"),
    ):
        with (
            SandboxEnvironments(backends=["bash"], tools=patterns) as environments,
            pytest.raises(error, match=text),
        ):
            environments()
    with pytest.raises(ConfigurationError, match="odd_do: its schema has no plain arguments"):
        tool_method(a_tool({"type": "object", "properties": []}))
