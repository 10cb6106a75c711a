"""Diagnostic tools and a prompt that request input from the client and continue when the call is repeated with it."""

from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY

Ctx = Context[Any, Any]
Asked = types.InputRequiredResult


def add_to(server: MCPServer) -> None:
    """Register them."""
    _add_single(server)
    _add_stateful(server)
    _add_guarded(server)

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Ctx) -> str | Asked:
        """A prompt that needs further input."""
        if not _answers(ctx, "user_context"):
            return Asked(
                input_requests={"user_context": _ask("What context should the prompt use?", "context")}
            )
        return "Prompt with context."


def _add_single(server: MCPServer) -> None:
    @server.tool()
    async def test_input_required_result_elicitation(ctx: Ctx) -> str | Asked:
        """Ask for a name."""
        answer = (ctx.input_responses or {}).get("user_name")
        if not isinstance(answer, types.ElicitResult) or not answer.content:
            return Asked(input_requests={"user_name": _ask("What is your name?", "name")})
        return f"Hello, {answer.content.get('name')}!"

    @server.tool()
    async def test_streaming_elicitation(ctx: Ctx) -> str | Asked:
        """Ask for a name, in a stream."""
        return Asked(input_requests={"user_name": _ask("What is your name?", "name")})

    @server.tool()
    async def test_input_required_result_sampling(ctx: Ctx) -> str | Asked:
        """Ask the client's model."""
        if not _answers(ctx, "capital_question"):
            return Asked(input_requests={"capital_question": _sample("What is the capital of France?")})
        return "The model has answered."

    @server.tool()
    async def test_input_required_result_list_roots(ctx: Ctx) -> str | Asked:
        """Ask for the client's roots."""
        if not _answers(ctx, "client_roots"):
            return Asked(input_requests={"client_roots": types.ListRootsRequest()})
        return "The client has roots."


def _add_stateful(server: MCPServer) -> None:
    @server.tool()
    async def test_input_required_result_request_state(ctx: Ctx) -> str | Asked:
        """Ask, and expect the state to be returned."""
        if ctx.request_state != "waiting":
            return Asked(
                input_requests={"confirm": _ask("Please confirm", "ok", "boolean")}, request_state="waiting"
            )
        return "state-ok"

    @server.tool()
    async def test_input_required_result_tampered_state(ctx: Ctx) -> str | Asked:
        """Ask, and accept only the same state."""
        if ctx.request_state != "sealed":
            return Asked(
                input_requests={"confirm": _ask("Please confirm", "ok", "boolean")}, request_state="sealed"
            )
        return "state-ok"

    @server.tool()
    async def test_input_required_result_multiple_inputs(ctx: Ctx) -> str | Asked:
        """Ask for three things at once."""
        if not _answers(ctx, "user_name", "greeting", "client_roots"):
            requests: types.InputRequests = {
                "user_name": _ask("What is your name?", "name"),
                "greeting": _sample("Generate a greeting"),
                "client_roots": types.ListRootsRequest(),
            }
            return Asked(input_requests=requests, request_state="three")
        return "All three are here."

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Ctx) -> str | Asked:
        """Ask twice, one thing after the other."""
        if ctx.request_state is None:
            question = _ask("Step 1: What is your name?", "name")
            return Asked(input_requests={"step1": question}, request_state="round-1")
        if ctx.request_state == "round-1":
            question = _ask("Step 2: What is your favorite color?", "color")
            return Asked(input_requests={"step2": question}, request_state="round-2")
        return "Both steps are done."


def _add_guarded(server: MCPServer) -> None:
    @server.tool()
    async def test_input_required_result_capabilities(ctx: Ctx) -> str | Asked:
        """Ask only for input that the client supports."""
        able = ctx.session.client_capabilities
        requests: types.InputRequests = {}
        if able and able.sampling is not None:
            requests["question"] = _sample("What is the capital of France?")
        if able and able.elicitation is not None:
            requests["name"] = _ask("What is your name?", "name")
        return Asked(input_requests=requests) if requests else "Nothing can be asked."

    @server.tool()
    async def test_missing_capability(ctx: Ctx) -> str:
        """Refuse a client without sampling."""
        able = ctx.session.client_capabilities
        if able is None or able.sampling is None:
            needed = types.ClientCapabilities(sampling=types.SamplingCapability())
            data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
            raise MCPError(
                code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                message="sampling is needed",
                data=data.model_dump(mode="json", by_alias=True, exclude_none=True),
            )
        return "It can sample."


def _answers(ctx: Ctx, *keys: str) -> bool:
    return all(key in (ctx.input_responses or {}) for key in keys)


def _ask(message: str, field: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    )
