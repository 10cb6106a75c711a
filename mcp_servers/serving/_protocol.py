"""Adapter from the tool table to the official SDK's server, for every transport and both protocol eras."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agentflow import __version__
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import TIMEOUT_KEY, ProgressSink, ToolResult
from mcp_servers.core._session_tools import SESSIONS
from mcp_servers.core._sessions import DefaultSession
from mcp_servers.core._table import ToolTable
from mcp_servers.core._tool import CARD_KEY, SESSION_ARGUMENT, UNUSABLE_KEY, Tool, with_required_session
from mcp_servers.serving._access import Scopes
from mcp_servers.serving._client_profiles import ClientProfile, ClientProfiles
from mcp_servers.serving._content import RANGE_TEMPLATE, ResourceRange, call_result, fitted, relayed
from mcp_servers.serving._fair_limiter import FairLimiter
from mcp_servers.serving._metrics import Metrics
from mcp_servers.serving._post_response import POST_RESPONSE, PostResponse
from mcp_servers.serving._server_names import SESSION_HEADER

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
"""The SDK's context of a request."""

logger = logging.getLogger(__name__)

PAGE = 250
"""Number of resources per page."""

RESOURCE_NOT_FOUND = -32002
"""Error code of the handshake era; the stateless era uses INVALID_PARAMS."""

STRUCTURED = "structured"
"""Query parameter of an endpoint's URL: `false` omits structured content for this connection."""

GUIDE = "guide"
"""Name of the prompt that explains the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """Limits, access and forms of results that all adapters of a server share."""

    limiters: Callable[[str], FairLimiter] | None = None
    """Returns the concurrency limiter of a backend."""
    scopes: Scopes = field(default_factory=Scopes)
    """Backends that each principal may use."""
    metrics: Metrics = field(default_factory=Metrics)
    """Counts the calls."""
    profiles: ClientProfiles = field(default_factory=ClientProfiles)
    """Forms of results by client."""
    routed: bool = False
    """Clients name the session of a call in a header, too, for a router."""


class McpAdapter:
    """Serves a tool table, or one backend of it, over MCP."""

    def __init__(
        self,
        table: ToolTable,
        *,
        principal: Callable[[RequestContext], str],
        backend: str | None = None,
        default: DefaultSession | None = None,
        options: AdapterOptions | None = None,
    ) -> None:
        """:param principal: returns the sender of a request.
        :param backend: serve only this backend (and the session tools).
        :param default: session of clients that name none, for a transport with a single client; without it, `session` is
            a required argument.
        """
        self._table = table
        self._principal = principal
        self._default = default
        self._options = options or AdapterOptions()
        self._backend = backend
        self._edition = -1
        self._tools_by_name: dict[str, Tool] = {}
        self._listing = types.ListToolsResult(tools=[])
        discovers = any(entry.discovers for entry in table.backends.values() if backend in (None, entry.name))
        self._listing_seconds = 10 if discovers else 3_600
        self._name = backend or "agentflow"
        self._description = (
            table.backends[backend].description if backend else "Tools in sandboxes that fork."
        )

    def server(self) -> "Server[Any]":
        """Return the SDK's server for any transport."""

        def schema_of(name: str) -> dict[str, object] | None:
            # Without the header the call is still passed on to the right server; `_check_header` refuses a wrong one.
            tool = None if self._options.routed else self._tools.get(name)
            return {} if tool is None else tool.input_schema

        return Server(
            self._name,
            version=__version__,
            description=self._description,
            instructions=self._instructions(),
            cache_hints={
                "server/discover": CacheHint(ttl_ms=3_600_000, scope="public"),
                # Private, because the list depends on the client's profile and token.
                "tools/list": CacheHint(ttl_ms=self._listing_seconds * 1_000, scope="private"),
                "prompts/list": CacheHint(ttl_ms=3_600_000, scope="public"),
                "resources/list": CacheHint(),
                "resources/templates/list": CacheHint(ttl_ms=3_600_000, scope="public"),
                "resources/read": CacheHint(ttl_ms=3_600_000),
            },
            get_tool_input_schema=schema_of,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_resource_templates,
            on_read_resource=self.read_resource,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
        )

    async def list_tools(
        self, context: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """List every tool that the caller may use, in a fixed order on one page."""
        self._renew()
        tools = self._listing.tools
        if self._options.scopes:
            allowed = self._mine(self._principal(context))
            tools = [tool for tool in tools if tool.name in allowed]
        if not self._profile(context).structured:
            # Clients refuse results without structured content of a tool that has an output schema.
            tools = [tool.model_copy(update={"output_schema": None}) for tool in tools]
        return types.ListToolsResult(tools=tools)

    def _profile(self, context: RequestContext) -> ClientProfile:
        client = context.session.client_params
        switch = None if context.request is None else context.request.query_params.get(STRUCTURED)
        return self._options.profiles.of(
            "" if client is None else client.client_info.name,
            structured=None if switch is None else switch == "true",
        )

    def _mine(self, principal: str) -> dict[str, Tool]:
        """Return the tools that this principal may use."""
        return {
            name: tool
            for name, tool in self._tools.items()
            if self._options.scopes.allow(principal, tool.backend)
        }

    @property
    def _tools(self) -> dict[str, Tool]:
        """The current tools by name."""
        self._renew()
        return self._tools_by_name

    def _renew(self) -> None:
        if self._edition != (edition := self._table.edition):
            self._edition = edition
            self._tools_by_name = {
                tool.name: tool
                if self._default or not tool.stateful
                else _with_required_session(tool, in_header=self._options.routed)
                for tool in self._table.tools
                if self._backend is None or tool.backend in (self._backend, SESSIONS)
            }
            self._listing = types.ListToolsResult(
                tools=[_listed(tool) for tool in self._tools_by_name.values()]
            )

    async def call_tool(
        self, context: RequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Call a tool. A failure is a result with `isError` and its kind, so that a model sees it."""
        reported = False

        async def report(done: float, total: float | None, message: str | None) -> None:
            nonlocal reported
            reported = True
            await context.session.report_progress(done, total, message)

        if self._may_report(context, params.name):
            async with relayed(report) as sink:
                result = await self._call(context, params, sink)
        else:
            result = await self._call(context, params, None)
        return self._converted(context, result, streams=reported)

    def _converted(
        self, context: RequestContext, result: ToolResult, *, streams: bool
    ) -> types.CallToolResult:
        """Convert a result to the form that the client can process.

        :param streams: events have been sent to the client in answer to this request.
        """
        profile = self._profile(context)
        response = None if context.request is None else context.request.scope.get(POST_RESPONSE)
        if not isinstance(response, PostResponse) or profile.event_bytes is None:
            return call_result(result, structured=profile.structured)
        if not streams and response.keep_plain():
            return call_result(result, structured=profile.structured)
        principal = self._principal(context)
        return fitted(
            result,
            profile.event_bytes,
            structured=profile.structured,
            keep=lambda name, mime, data: self._table.sessions.keep(principal, name, mime, data),
        )

    async def list_resources(
        self, context: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the resources of the caller's sessions."""
        links = await self._table.kept(self._principal(context))
        start = _offset(params.cursor if params else None)
        rest = start + PAGE
        resources = [
            types.Resource(uri=link.uri, name=link.name, mime_type=link.mime, size=link.size)
            for link in links[start:rest]
        ]
        return types.ListResourcesResult(
            resources=resources, next_cursor=str(rest) if rest < len(links) else None
        )

    async def list_resource_templates(
        self, context: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """List the only template: ranges of kept resources."""
        template = types.ResourceTemplate(
            name="range", uri_template=RANGE_TEMPLATE, description="A range of bytes of a kept resource."
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: RequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Read a resource of one of the caller's sessions, or a range of it."""
        try:
            wanted = ResourceRange.parse(params.uri)
        except ValueError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error), data={"uri": params.uri}) from None
        resource = await self._table.read(wanted.uri, self._principal(context))
        if resource is None:
            modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = types.INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
            raise MCPError(code=code, message="Resource not found", data={"uri": params.uri})
        return types.ReadResourceResult(contents=[wanted.read(params.uri, resource)])

    async def list_prompts(
        self, context: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """List the only prompt, a guide to the tools."""
        guide = types.Prompt(
            name=GUIDE, title="Guide to the tools", description="The tools as text, for any model."
        )
        return types.ListPromptsResult(prompts=[guide])

    async def get_prompt(
        self, context: RequestContext, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return the guide."""
        if params.name != GUIDE:
            raise MCPError(
                code=types.INVALID_PARAMS, message=f"no prompt {params.name!r}; available: {GUIDE!r}"
            )
        tools = self._mine(self._principal(context))
        text = "\n\n".join(tool.prompt() for tool in tools.values())
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(text=text))]
        )

    def _may_report(self, context: RequestContext, name: str) -> bool:
        """Return true if the client may listen to the progress of this tool."""
        tool = self._tools.get(name)
        if tool is None or tool.context_parameter is None:
            return False
        # The SDK's in-process client asks for progress without a token, so there is no way to tell.
        return context.request is None or "progress_token" in (context.meta or {})

    async def _call(
        self, context: RequestContext, params: types.CallToolRequestParams, progress: ProgressSink | None
    ) -> ToolResult:
        with self._options.metrics.call(params.name if params.name in self._tools else "unknown") as ended:
            result = await self._answer(context, params, progress)
            ended(result)
            return result

    def _check_scope(self, principal: str, tool: Tool, arguments: Mapping[str, object]) -> None:
        backends = {tool.backend}
        if tool.backend == SESSIONS:
            for argument in ("backends", "settings"):
                value = arguments.get(argument)
                backends.update(map(str, value) if is_list(value) or is_object(value) else ())
        for backend in sorted(backends):
            if not self._options.scopes.allow(principal, backend):
                raise ToolFailure(ErrorKind.DENIED, f"this token may not use the backend {backend!r}.")

    async def _answer(
        self, context: RequestContext, params: types.CallToolRequestParams, progress: ProgressSink | None
    ) -> ToolResult:
        tool = self._tools.get(params.name)
        principal = self._principal(context)
        try:
            if tool is None:
                raise self._table.unknown(params.name, self._mine(principal))
            self._check_scope(principal, tool, params.arguments or {})
            _check_header(context, params.arguments or {})
            limiters = self._options.limiters
            limiter = None if limiters is None or tool.interjects else limiters(tool.backend)
            async with nullcontext() if limiter is None else limiter.slot(principal):
                result = await self._table.call(
                    tool.name,
                    params.arguments,
                    principal=principal,
                    session=self._default,
                    timeout=_timeout(params.meta),
                    progress=progress,
                )
        except ToolFailure as failure:
            result = ToolResult.failed(failure)
        if logger.isEnabledFor(logging.DEBUG):
            outcome = result.error.kind if result.error else "ok"
            logger.debug("%s called %s: %s", principal, tool.name if tool else "an unknown tool", outcome)
        return result

    def _instructions(self) -> str:
        session_use = "Calls without `session` work in this connection's own session." if self._default else (
            "Start a session with session_start and pass its handle as `session`."
        )  # fmt: skip
        return f"{self._description} State lives in sessions. {session_use} session_fork copies a session with all its state."


def _check_header(context: RequestContext, arguments: Mapping[str, object]) -> None:
    """Refuse a call whose header names another session than its arguments."""
    header = None if context.request is None else context.request.headers.get(SESSION_HEADER.decode())
    if header is not None and header != arguments.get(SESSION_ARGUMENT):
        message = "the header Mcp-Param-Session and the argument `session` must be equal."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)


def _timeout(meta: types.RequestParamsMeta | None) -> float | None:
    """Return the request's timeout in seconds; `None` if absent or invalid."""
    seconds: object = (meta or {}).get(TIMEOUT_KEY)
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _with_required_session(tool: Tool, *, in_header: bool) -> Tool:
    schema = with_required_session(tool.input_schema, {X_MCP_HEADER_KEY: "Session"} if in_header else {})
    return replace(tool, input_schema=schema)


def _listed(tool: Tool) -> types.Tool:
    hints = tool.hints
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
        _meta=_notes(tool) or None,
    )


def _notes(tool: Tool) -> dict[str, object]:
    """Return the metadata for which the protocol has no field."""
    notes: dict[str, object] = {UNUSABLE_KEY: tool.unusable} if tool.unusable else {}
    card = {"limits": tool.limits, "practices": tool.practices, "examples": tool.examples}
    if any(card.values()):
        notes[CARD_KEY] = {name: list(lines) for name, lines in card.items()}
    return notes


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal():
        raise MCPError(code=types.INVALID_PARAMS, message="Invalid cursor")
    return int(cursor)
