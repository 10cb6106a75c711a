"""Messages of external servers: any bytes are passed on within the limits, or refused with one line."""

import json
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from agentflow._typeguards import is_list
from agentflow.actors import Backoff
from agentflow.errors import ToolFailure
from mcp_servers import ToolTable
from mcp_servers.external import ExternalBackend
from mcp_servers.external._connections import (
    Piece,
    PipeTransport,
    ServerConnection,
    pipe_streams,
)
from mcp_servers.external._message_limits import EVENTS, BoundedBody, BoundedMessages, limits_of
from mcp_servers.external._server_set import ServerSet
from mcp_servers.external._settings import MountSettings
from mcp_servers.serving._content import call_result
from runtimes import JsonLimits
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed
from tests.fuzz.test_json_limits import values_of

pytestmark = pytest.mark.promise("external:fuzzed")

LIMITS = JsonLimits(max_bytes=2_000, max_values=40)
MAX_TOOLS, MAX_BLOCKS = 2, 3
SETTINGS = MountSettings(command=["none"], max_tools=MAX_TOOLS, message_bytes=1 << 16)

TEXT = {"type": "text", "text": 'a, "b" [c] {d}\u2028\x1b[31m'}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "title": "N", "enum": [1, 2.5e3, None]}}}
TOOL = {
    "name": "tool",
    "description": "A tool.",
    "inputSchema": {"type": "object"},
    "outputSchema": SCHEMA,
    "annotations": {"title": "T", "readOnlyHint": True},
}
RESULTS: tuple[dict[str, object], ...] = (
    {"content": [TEXT]},
    {"content": [TEXT] * 5, "structuredContent": {"n": 1}},
    {"content": [], "structuredContent": {"n": 2500, "list": [1, [2, [3, {}]]], "x": -1.5e300}},
    {"content": [{"type": "text", "text": '{"n": 1}'}], "structuredContent": {"n": 1}},
    {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
    {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a", "size": 5}]},
    {"content": [{"type": "resource", "resource": {"uri": "file:///a/b", "blob": "AAAA"}}]},
    {"content": [TEXT], "isError": True, "_meta": {"agentflow/error": {"kind": "denied", "data": {"a": 1}}}},
)
EMPTY_TOOL: dict[str, object] = {}
LISTED: dict[str, object] = {"tools": [TOOL, {**TOOL, "name": "other.tool"}]}
GREETING: dict[str, object] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "s", "version": "1"},
}
OTHERS: tuple[dict[str, object], ...] = (
    {"error": {"code": -32602, "message": "no\nsuch tool", "data": [1]}},
    {"method": "notifications/tools/list_changed"},
    {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1, "message": "m"}},
    {"method": "notifications/message", "params": {"level": "error", "data": "x"}},
    {"method": "ping", "params": {}},
    {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}},
    {"method": "roots/list"},
)
PIECES = (
    b"[" * 600,
    b'{"a":' * 600,
    b"[]," * 25,
    b"9" * 5_000,
    b"1e400",
    b"-" + b"9" * 4_400,
    b"\\ud800",
    b"\\u0000",
    b"NaN",
    b"-Infinity",
    b"\xff\xfe",
    b"\r\n",
    b"\r\r",
    b"\ndata: ",
    b"\rdata:[[],[],",
    b"\n\n",
    b"null",
    b'{"$ref":"#"}',
    b'"isError":true,',
)


def message(fields: Mapping[str, object], number: object = 1) -> bytes:
    """Return a message; a result or error answers the request of that number."""
    answers = {"id": number} if "method" not in fields or fields["method"] == "ping" else {}
    return json.dumps({"jsonrpc": "2.0", **answers, **fields}, ensure_ascii=False).encode()


def changed(case: FuzzCase, data: bytes) -> bytes:
    """Return data with a hostile piece or with mutations, mostly."""
    if case.random() < 0.6:
        place = case.randint(0, len(data))
        data = data[:place] + case.choice(PIECES) + data[place:]
    return case.mutated(data) if case.random() < 0.7 else data


def any_message(case: FuzzCase) -> bytes:
    """Return the bytes of one message, changed."""
    fields = case.choice(
        (
            *[{"result": result} for result in (*RESULTS, LISTED, GREETING, {"tools": [EMPTY_TOOL] * 5})],
            *OTHERS,
        )
    )
    return changed(case, message(fields))


class Pieces(httpx2.AsyncByteStream):
    """Body that arrives in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for piece in self._pieces:
            yield piece


def response_of(case: FuzzCase, body: bytes, kind: str) -> httpx2.Response:
    """Return a response with a bounded body."""
    sent = httpx2.Request("POST", "http://far/mcp", content=message({"method": "ping"}, number=7))
    response = httpx2.Response(
        200, headers={"Content-Type": kind}, stream=Pieces(case.pieces(body)), request=sent
    )
    response.stream = BoundedBody(response, LIMITS)
    return response


def check_within_limits(data: str | bytes) -> None:
    """Check that no decoder can create more than the permitted values from data, apart from a refusal."""
    with suppress(ValueError, RecursionError):
        decoded = json.loads(data)
        assert values_of(decoded) <= LIMITS.max_values


@fuzzed
async def test_any_json_body_is_passed_on_or_refused(budget: FuzzBudget) -> None:
    for case in budget.cases(short=400):
        with case:
            body = any_message(case)
            received = await response_of(case, body, "application/json").aread()
            if received != body:
                refusal = types.jsonrpc_message_adapter.validate_json(received, by_name=False)
                assert isinstance(refusal, types.JSONRPCError), received
                assert refusal.id == 7
                assert refusal.error.message.startswith("the server's answer is refused: ")
            check_within_limits(received)


@fuzzed
async def test_any_event_is_passed_on_or_refused(budget: FuzzBudget) -> None:
    for case in budget.cases(short=400):
        with case:
            end = case.choice((b"\n", b"\r", b"\r\n"))
            events = [b"id: 1" + end + b"data:" + end + end, *[any_message(case) for _ in range(3)]]
            body = b"".join(b"event: message" + end + b"data: " + event + end * 2 for event in events)
            body = case.mutated(body)
            response = response_of(
                case, body, case.choice((EVENTS, EVENTS.upper(), f"{EVENTS}; charset=utf-16"))
            )
            with suppress(httpx2.SSEError):
                async for event in httpx2.EventSource(response, max_event_size=LIMITS.max_bytes):
                    check_within_limits(event.data)


class SilentPipes:
    """Pipes of a command that has written some output and ended."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces

    async def send(self, data: bytes) -> None:
        """Discard data."""

    async def receive(self) -> AsyncGenerator[Piece]:
        """Yield the output."""
        for piece in self._pieces:
            yield piece

    async def wait(self) -> int:
        """Return the exit status."""
        return 0


@fuzzed
async def test_any_output_of_a_command_is_passed_on_logged_or_refused(
    budget: FuzzBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_servers.external._message_limits.MAX_BLOCKS", MAX_BLOCKS)
    first = message({"result": {"first": True}})
    for case in budget.cases(short=400):
        with case:
            output = b"\n".join([first, *[any_message(case) for _ in range(3)], b""])
            pieces: list[Piece] = [("stdout", piece) for piece in case.pieces(output)]
            pieces.insert(case.randint(0, len(pieces)), ("stderr", any_message(case)))
            transport = PipeTransport("bad", SilentPipes(pieces), LIMITS)
            received: list[types.JSONRPCMessage] = []
            with anyio.fail_after(60):
                async with pipe_streams(transport) as (incoming, _):
                    async for item in BoundedMessages(incoming, SETTINGS):
                        assert isinstance(item, SessionMessage)
                        received.append(item.message)
                    reason = await transport.ended()
            assert isinstance(received[0], types.JSONRPCResponse)
            assert received[0].result == {"first": True}
            for one in received:
                check_bounded(one)
            assert "\n" not in reason
            assert len(reason) < 3_000


def check_bounded(one: types.JSONRPCMessage) -> None:
    """Check the limits of a message after decoding."""
    if isinstance(one, types.JSONRPCResponse):
        tools, content = one.result.get("tools"), one.result.get("content")
        assert not is_list(tools) or len(tools) <= MAX_TOOLS
        assert not is_list(content) or len(content) <= MAX_BLOCKS + 1


class Mutations:
    """Case that changes the answers to a method; without a case all answers are good."""

    case: FuzzCase | None = None
    method = ""


class MutatingPipes:
    """Pipes of a server that sends a changed answer before each good one."""

    def __init__(self, mutations: Mutations) -> None:
        self._mutations = mutations
        self._output, self._answers = anyio.create_memory_object_stream[bytes](100)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._output.close()
        self._answers.close()

    async def send(self, data: bytes) -> None:
        """Answer the requests of the client."""
        for line in data.splitlines():
            asked = json.loads(line)
            if "method" not in asked or "id" not in asked:
                continue
            case = self._mutations.case
            if case is not None and asked["method"] == self._mutations.method:
                bad = any_message(case) if case.random() < 0.2 else changed(case, self._answer(asked))
                for piece in case.pieces(bad):
                    await self._output.send(piece)
            await self._output.send(b"\n" + self._answer(asked) + b"\n")

    def _answer(self, asked: dict[str, object]) -> bytes:
        case = self._mutations.case
        results = {
            "initialize": GREETING,
            "tools/list": LISTED,
            "tools/call": case.choice(RESULTS) if case else RESULTS[1],
        }
        method = str(asked["method"])
        if method not in results:
            return message({"error": {"code": -32601, "message": "no such method"}}, asked["id"])
        return message({"result": results[method]}, asked["id"])

    async def receive(self) -> AsyncGenerator[Piece]:
        """Yield the answers."""
        async for data in self._answers:
            yield "stdout", data

    async def wait(self) -> int:
        """Return the exit status."""
        return 0


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Mutations:
    """Let all mounts connect to a mutating server, and reconnect at once."""
    mutations = Mutations()

    @asynccontextmanager
    async def connect(
        name: str, settings: MountSettings, folder: Path | None, sandbox: object
    ) -> AsyncGenerator[ServerConnection]:
        with MutatingPipes(mutations) as pipes:
            transport = PipeTransport(name, pipes, limits_of(settings))
            async with pipe_streams(transport) as streams:
                yield ServerConnection(settings, streams, transport)

    monkeypatch.setattr("mcp_servers.external._server_set.connect", connect)
    monkeypatch.setattr("mcp_servers.external._mounted_server.BACKOFF", Backoff(initial=0.0, maximum=0.0))
    return mutations


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the errors logged so far, and forget them."""
    errors = [
        record.getMessage() + (record.exc_text or "")
        for record in caplog.records
        if record.levelno >= logging.ERROR
    ]
    caplog.clear()
    return errors


@fuzzed
async def test_any_start_of_a_server_gives_tools_or_one_line(
    budget: FuzzBudget, mutations: Mutations, caplog: pytest.LogCaptureFixture
) -> None:
    for case in budget.cases(short=60):
        with case, anyio.fail_after(60):
            mutations.case, mutations.method = (
                case,
                case.choice(("server/discover", "initialize", "tools/list")),
            )
            servers = ServerSet({"bad": SETTINGS}, None)
            try:
                await servers.open()
            except ToolFailure as failure:
                assert failure.message.startswith("mcp server 'bad' cannot be started: ")
                assert "\n" not in failure.message
            else:
                assert len(servers.tools) <= MAX_TOOLS
                for tool in servers.tools:
                    assert len(tool.called) <= 64
                    json.dumps([tool.title, tool.description, tool.input_schema, tool.output_schema]).encode()
                await servers.close()
            assert errors_of(caplog) == []


@fuzzed
async def test_any_answer_to_a_call_is_a_result_or_a_typed_failure(
    budget: FuzzBudget, mutations: Mutations, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"mcp": {"servers": {"bad": {"command": "none", "message_bytes": 1 << 16}}}}
    async with ToolTable([ExternalBackend()], settings=settings) as table:
        for case in budget.cases(short=150):
            with case, anyio.fail_after(60):
                mutations.case, mutations.method = case, "tools/call"
                result = await table.call("mcp:bad.tool", {})
                if result.error is not None:
                    assert "\n" not in result.error.message
                call_result(result).model_dump_json(by_alias=True).encode()
                assert errors_of(caplog) == []
                mutations.case = None
                assert (await table.call("mcp:bad.other.tool", {})).error is None
