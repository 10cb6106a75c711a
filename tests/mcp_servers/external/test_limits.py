"""Servers that send too much: over pipes, as JSON over HTTP, and as events."""

import gzip
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from mcp_servers.external._message_limits import MAX_BLOCKS
from tests.mcp_servers.external._mounting import a_tool, bad, mounting, server_settings

SMALL = 64 * 1024
EVENTS = "text/event-stream"
Answers = dict[str, Callable[[bytes], tuple[str, bytes]]]


def many(count: int) -> dict[str, object]:
    """A result of so many values."""
    return {"content": [], "structuredContent": {"a": [[]] * count}}


def event(*data: bytes, end: bytes = b"\n", before: bytes = b"") -> tuple[str, bytes]:
    """An event with these lines of data."""
    return EVENTS, before + b"".join(b"data: " + line + end for line in data) + end


def packed(body: bytes) -> tuple[str, bytes]:
    """A compressed answer, which decompresses to a thousand times its size."""
    return "gzip", gzip.compress(body + b" " * 1_000_000)


def answered(body: bytes) -> tuple[str, bytes]:
    """An answer in plain JSON."""
    return "application/json", body


@asynccontextmanager
async def hostile(answers: Answers, pages: list[list[dict[str, object]]]) -> AsyncGenerator[str]:
    """Serve tools over HTTP; `answers` maps the names of tools to content type and body, given a good answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        method, params = message["method"], message.get("params", {})
        result: object = {}
        if method == "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bad", "version": "1"},
            }
        elif method == "tools/list":
            number = int(params.get("cursor", 0))
            more = {"nextCursor": str(number + 1)} if number + 1 < len(pages) else {}
            result = {"tools": pages[number], **more}
        elif method == "tools/call":
            result = {"content": [{"type": "text", "text": "fine"}]}
        else:
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        make = answers.get(params.get("name", ""), answered) if method == "tools/call" else answered
        kind, body = make(body)
        if kind == "gzip":
            headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            return web.Response(body=body, headers=headers)
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.mark.promise("external:limits")
async def test_a_message_over_a_limit_ends_the_connection_of_a_command(tmp_path: Path) -> None:
    async with mounting({"bad": server_settings(bad(tmp_path), message_bytes=SMALL)}) as mounted:
        assert len(await mounted.text("bad.big", size=60_000)) == 60_000
        for reason, arguments in (
            ("a message of more than 65,536 bytes (`message_bytes`)", {"size": 70_000}),
            ("a message has more than 1000 values", None),
        ):
            tool, call_arguments = (
                ("bad.answer", {"result": many(1_001)}) if arguments is None else ("bad.big", arguments)
            )
            kind, message = await mounted.failure(tool, **call_arguments)
            assert kind == "unavailable"
            assert f"the server ended during the call: {reason}. It is restarted" in message
        # As many in a text are no values.
        assert await mounted.text("bad.answer", result={"content": [{"type": "text", "text": "[]," * 3_000}]})


ATTACKS: Answers = {
    "json-size": lambda body: answered(body + b" " * SMALL),
    "json-values": lambda body: answered(b"[" + b"[]," * 1_000 + body + b"]"),
    "json-gzip": packed,
    "event-size": lambda body: event(body + b" " * SMALL),
    "event-values": lambda body: event(b"[" + b"[]," * 1_000 + body + b"]"),
    # Values spread over lines, and after a quotation mark that is not part of the data.
    "event-lines": lambda body: event(b"[", *[b"[]," * 200] * 6, body, b"]", end=b"\r\n"),
    "event-quote": lambda body: event(b"[" + b"[]," * 1_000 + body + b"]", before=b'id: "\n'),
    "event-endless": lambda body: (EVENTS, b"data: " + b"x" * SMALL),
}
FINE: Answers = {
    "json": answered,
    "event": event,
    "events": lambda body: (EVENTS, b": hello\n\n" + b"id: 1\ndata:\n\n" * 50 + event(body, end=b"\r")[1]),
    "charset": lambda body: (f"{EVENTS}; charset=utf-16", event(body)[1]),
    "commas": lambda body: event(body.replace(b"fine", b"[[,{," * 5_000)),
}
SIZE, VALUES = "a message of more than 65,536 bytes", "a message has more than 1000 values"
REASONS = {
    "size": SIZE,
    "values": VALUES,
    "gzip": "it is compressed although we accept no compression",
    "lines": VALUES,
    "quote": VALUES,
    "endless": SIZE,
}


@pytest.mark.promise("external:limits")
async def test_an_answer_over_a_limit_fails_the_call_of_a_server_at_a_url() -> None:
    pages = [[a_tool(name) for name in (*ATTACKS, *FINE)]]
    async with (
        hostile({**ATTACKS, **FINE}, pages) as url,
        mounting({"far": {"url": url, "message_bytes": SMALL}}) as mounted,
    ):
        for name in ATTACKS:
            _, message = await mounted.failure(f"far.{name}")
            assert message.startswith(f"mcp:far.{name}: the server's answer is refused: "), message
            assert REASONS[name.partition("-")[2]] in message, name
        for name in FINE:
            assert await mounted.text(f"far.{name}"), name


@pytest.mark.promise("external:limits")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_tools": 11}, "it lists more than 11 tools (`max_tools`)"),
        ({"tools_bytes": 1_500}, "its list of tools has more than 1,500 bytes (`tools_bytes`)"),
        ({"message_bytes": SMALL}, "a message of more than 65,536 bytes (`message_bytes`)"),
    ],
)
async def test_a_server_with_too_many_tools_is_refused(
    settings: dict[str, int], reason: str, tmp_path: Path
) -> None:
    tools = [a_tool(f"t{number}") for number in range(1_000 if "message_bytes" in settings else 2)]
    with pytest.raises(Exception, match="mcp server 'bad' cannot be started: ") as refused:
        async with mounting({"bad": server_settings(bad(tmp_path, *tools), **settings)}):
            pass
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("external:limits")
async def test_the_limits_of_tools_are_for_all_pages_together() -> None:
    pages = [[a_tool(f"t{page}-{number}") for number in range(4)] for page in range(3)]
    async with hostile({}, pages) as url:
        async with mounting({"far": {"url": url, "max_tools": 12}}) as mounted:
            assert len(mounted.names()) == 12
        with pytest.raises(Exception, match="it lists more than 11 tools"):
            async with mounting({"far": {"url": url, "max_tools": 11}}):
                pass


@pytest.mark.promise("external:limits")
async def test_a_result_of_many_pieces_is_shortened_with_a_note(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "x"}] * (MAX_BLOCKS + 5)
    async with mounting({"bad": server_settings(bad(tmp_path))}) as mounted:
        shown = await mounted.text("bad.answer", result={"content": content})
    assert shown == "x" * MAX_BLOCKS + "[5 more pieces of content are left out]"
