"""Features of the conformance suite that our tool table does not have, built with the SDK's own server.

Sampling, elicitation, protocol logging, completions, templates, subscriptions: the fixture server offers them beside
the tools of its table, so that the suite can run its whole required set through our serving code.
"""

import json
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from pydantic import BaseModel, Field

from tests.conformance import _input_required
from tests.mcp_servers._counter import PIXEL

WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
"""A silent audio clip."""

INFO: types.LoggingLevel = "info"


class Person(BaseModel):
    """Schema requested by `test_elicitation`."""

    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Defaults(BaseModel):
    """Every primitive type with a default."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def _titled(key: str, *values: str) -> dict[str, Any]:
    return {key: [{"const": value, "title": value.title()} for value in values]}


class Choices(BaseModel):
    """Every way to offer a choice."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra=_titled("oneOf", "value1", "value2", "value3"))
    legacyEnum: str = Field(
        json_schema_extra={"enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]}
    )
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(
        json_schema_extra={"items": _titled("anyOf", "value1", "value2", "value3")}
    )


def companion() -> MCPServer:
    """The SDK's server with the diagnostic tools, prompts and resources."""
    server = MCPServer("conformance-fixture", log_level="WARNING")
    _add_tools(server)
    _input_required.add_to(server)
    _add_prompts(server)
    _add_resources(server)

    @server.completion()
    async def complete(
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: types.CompletionArgument,
        context: types.CompletionContext | None,
    ) -> types.Completion:
        return types.Completion(values=["paris", "park", "party"], total=3, has_more=False)

    return server


def _add_tools(server: MCPServer) -> None:
    @server.tool()
    async def test_audio_content() -> list[types.AudioContent]:
        """A sound."""
        return [types.AudioContent(data=WAV, mime_type="audio/wav")]

    @server.tool()
    async def test_embedded_resource() -> list[types.EmbeddedResource]:
        """An embedded resource."""
        return [_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]

    @server.tool()
    async def test_multiple_content_types() -> list[
        types.TextContent | types.ImageContent | types.EmbeddedResource
    ]:
        """Text, an image and a resource."""
        return [
            types.TextContent(text="Multiple content types test:"),
            types.ImageContent(data=_pixel(), mime_type="image/png"),
            _embedded(
                "test://mixed-content-resource",
                "application/json",
                json.dumps({"test": "data", "value": 123}),
            ),
        ]

    @server.tool()
    async def test_tool_with_logging(ctx: Context[Any, Any]) -> str:
        """Log three lines."""
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.log(INFO, line)  # pyright: ignore[reportDeprecated]  # the handshake era still asks for it
        return "done"

    @server.tool()
    async def test_logging_tool(ctx: Context[Any, Any]) -> str:
        """Log one line to clients that asked for it."""
        await ctx.log(INFO, "a line")  # pyright: ignore[reportDeprecated]  # the handshake era still asks for it
        return "done"

    @server.tool()
    async def test_sampling(prompt: str, ctx: Context[Any, Any]) -> str:
        """Ask the client's model."""
        message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
        result = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]  # as above
            messages=[message], max_tokens=100
        )
        return f"LLM response: {result.content}"

    @server.tool()
    async def test_elicitation(message: str, ctx: Context[Any, Any]) -> str:
        """Ask the user."""
        return str(await ctx.elicit(message, Person))

    @server.tool()
    async def test_elicitation_sep1034_defaults(ctx: Context[Any, Any]) -> str:
        """Ask the user, with defaults."""
        return str(await ctx.elicit("Please check", Defaults))

    @server.tool()
    async def test_elicitation_sep1330_enums(ctx: Context[Any, Any]) -> str:
        """Ask the user to choose."""
        return str(await ctx.elicit("Please choose", Choices))


def _add_prompts(server: MCPServer) -> None:
    @server.prompt()
    async def test_simple_prompt() -> str:
        """A simple prompt."""
        return "This is a simple prompt for testing."

    @server.prompt()
    async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A prompt with arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    async def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
        """A prompt with a resource in it."""
        resource = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(resource), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    async def test_prompt_with_image() -> list[Message]:
        """A prompt with an image."""
        picture = types.ImageContent(data=_pixel(), mime_type="image/png")
        return [UserMessage(picture), UserMessage("Please analyze the image above.")]


def _add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    async def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    async def static_binary() -> bytes:
        """An image."""
        return PIXEL

    @server.resource("test://watched-resource", mime_type="text/plain")
    async def watched() -> str:
        """A text that can be watched."""
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    async def template(id: str) -> str:
        """A text for each id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _embedded(uri: str, mime: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime, text=text))


def _pixel() -> str:
    return types.ImageContent.model_validate(
        {"type": "image", "data": _b64(PIXEL), "mimeType": "image/png"}
    ).data


def _b64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()
