"""Results in MCP's wire form."""

import json

import mcp_types as types

from agentflow.errors import ErrorKind
from mcp_servers import Image, ResourceLink, TextContent, ToolError, ToolResult
from mcp_servers.core import ERROR_KEY, Resource
from mcp_servers.serving._content import call_result, resource_contents


def test_data_is_structured_content_and_text() -> None:
    result = call_result(ToolResult(True, {"text": "é"}))
    assert result.structured_content == {"text": "é"}
    assert result.content == [types.TextContent(text='{"text": "é"}')]
    assert not result.is_error


def test_parts_accompany_the_data_or_stand_alone() -> None:
    parts = (
        TextContent("t"),
        Image(b"\x00", "image/png"),
        ResourceLink("agentflow://s/1/x", "x", "text/plain", 3),
    )
    alone = call_result(ToolResult(True, {}, None, parts))
    assert [block.type for block in alone.content] == ["text", "image", "resource_link"]
    beside = call_result(ToolResult(True, {"a": 1}, None, parts))
    assert [block.type for block in beside.content] == ["text", "text", "image", "resource_link"]


def test_a_failure_has_kind_message_and_partial_data_but_no_structured_content() -> None:
    error = ToolError(ErrorKind.TIMEOUT, "the time was up")
    result = call_result(ToolResult(False, {"stdout": "half"}, error))
    assert result.is_error
    assert result.structured_content is None
    assert result.content[0] == types.TextContent(text="timeout: the time was up")
    assert result.meta == {
        ERROR_KEY: {"kind": "timeout", "message": "the time was up", "data": {"stdout": "half"}}
    }


def test_values_that_json_cannot_represent_are_replaced() -> None:
    result = call_result(
        ToolResult(True, {"text": "lone \ud800", "number": float("nan"), "list": ["\udfff"]})
    )
    assert result.structured_content == {"text": "lone ?", "number": None, "list": ["?"]}
    json.dumps(result.structured_content, allow_nan=False).encode()


def test_a_kept_text_is_read_as_text_and_anything_else_as_a_blob() -> None:
    text = resource_contents(Resource("agentflow://s/1/x", "x", "text/plain", "é".encode()))
    assert isinstance(text, types.TextResourceContents)
    assert text.text == "é"
    blob = resource_contents(Resource("agentflow://s/2/x", "x", "image/png", b"\xff"))
    assert isinstance(blob, types.BlobResourceContents)
    assert blob.blob == "/w=="
