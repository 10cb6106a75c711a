"""Protocol of the server: requests that break HTTP, JSON or MCP, guess sessions, or use what belongs to another token."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import anyio

from mcp_servers import HttpServer
from tests.attacks._table import Attack, attacks
from tests.mcp_servers._serving import connected, headers_of, request

CATEGORY = "protocol"
TOKENS: Final = {"alice": "token-of-alice", "bob": "token-of-bob"}
UNFINISHED: Final = frozenset({"http: huge chunk"})
"""Requests for which the server would wait."""
REFUSED = "(4\\d\\d|501|505|closed|200 error .*); alive"
NO_EFFECT = "(2\\d\\d|4\\d\\d|closed).*; alive"

Raw = Callable[[int, str], bytes]
"""Bytes to send, given the port of the server and a session of another token."""


def _raw(body: bytes, head: str = "", line: str = "POST /mcp HTTP/1.1", *, usual: bool = True) -> Raw:
    def make(port: int, session: str) -> bytes:
        message = b""
        lines = [line]
        if usual:
            lines += [
                f"Host: 127.0.0.1:{port}",
                f"Authorization: Bearer {TOKENS['bob']}",
                "Connection: close",
            ]
            if "Content-Length" not in head and "Transfer-Encoding" not in head:
                lines.append(f"Content-Length: {len(body)}")
        lines += [one for one in head.split("\n") if one]
        message = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
        return message.replace(b"$PORT", str(port).encode()).replace(b"$SESSION", session.encode())

    return make


def _post(message: bytes | Mapping[str, object], **headers: str) -> Raw:
    """Send a JSON message with correct headers, except those given."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    usual = headers_of({"method": "tools/list"} if isinstance(message, bytes) else message)
    lines = "\n".join(f"{name}: {value}" for name, value in {**usual, **headers}.items())

    def make(port: int, session: str) -> bytes:
        filled = body.replace(b"$SESSION", session.encode())
        return _raw(filled, lines)(port, session)

    return make


def _call(tool: str, **arguments: object) -> Raw:
    return _post(request("tools/call", {"name": tool, "arguments": arguments}))


def _ask(method: str, **params: object) -> Raw:
    return _post(request(method, params))


_LIST = request("tools/list")
_LIST_BODY = json.dumps(_LIST).encode()
_HEAD = "\n".join(f"{name}: {value}" for name, value in headers_of(_LIST).items())
_HOST = "Host: 127.0.0.1:$PORT"
_LENGTH = f"Content-Length: {len(_LIST_BODY)}"


def _bare(*lines: str) -> Raw:
    """Send a good request with these headers only."""
    return _raw(_LIST_BODY, "\n".join((_HEAD, _LENGTH, "Connection: close", *lines)), usual=False)


_BOB = f"Authorization: Bearer {TOKENS['bob']}"
_DEEP = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001

_TABLE: dict[str, tuple[str, Raw, str]] = {
    "token: none": ("use the server without a token", _bare(_HOST), "401; alive"),
    "token: wrong": ("guess a token", _bare(_HOST, "Authorization: Bearer x"), "401; alive"),
    "token: prefix": ("use a part of a token", _bare(_HOST, f"Authorization: Bearer {TOKENS['bob'][:-1]}"), "401; alive"),
    "token: longer": ("use a token with more after it", _bare(_HOST, f"{_BOB}x"), "401; alive"),
    "token: case": ("use a token in capitals", _bare(_HOST, _BOB.upper()), "401; alive"),
    "token: basic": ("use another scheme", _bare(_HOST, f"Authorization: Basic {TOKENS['bob']}"), "401; alive"),
    "token: empty": ("use an empty token", _bare(_HOST, "Authorization: Bearer "), "401; alive"),
    "token: principal": ("use the name of a client as its token", _bare(_HOST, "Authorization: Bearer bob"), "401; alive"),
    "token: two": ("send a good and a bad token", _bare(_HOST, "Authorization: Bearer x", _BOB), "(4\\d\\d|200).*; alive"),
    "token: list": ("send tokens as a list", _bare(_HOST, f"Authorization: Bearer x, Bearer {TOKENS['bob']}"), "401; alive"),
    "token: cookie": ("send a token as a cookie", _bare(_HOST, f"Cookie: token={TOKENS['bob']}"), "401; alive"),
    "token: query": ("send a token in the address", _raw(_LIST_BODY, f"{_HEAD}\n{_LENGTH}\n{_HOST}\nConnection: close", f"POST /mcp?token={TOKENS['bob']} HTTP/1.1", usual=False), "401; alive"),
    "token: proxy": ("send a token as that of a proxy", _bare(_HOST, f"Proxy-{_BOB}"), "401; alive"),
    "token: forwarded": ("pretend to be a trusted proxy", _bare(_HOST, "X-Forwarded-User: bob", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1"), "401; alive"),
    "host: other": ("rebind a name to the server", _bare("Host: evil.example", _BOB), "(403|421); alive"),
    "host: other port": ("use another port's name", _bare("Host: 127.0.0.1:1", _BOB), "(403|421); alive"),
    "host: none": ("send no host", _bare(_BOB), "4\\d\\d; alive"),
    "host: two": ("send two hosts", _bare(_HOST, "Host: evil.example", _BOB), "4\\d\\d; alive"),
    "host: suffix": ("use a name that begins like the server's", _bare("Host: 127.0.0.1.evil.example", _BOB), "(403|421); alive"),
    "host: credentials": ("hide the host behind a user", _bare("Host: 127.0.0.1:$PORT@evil.example", _BOB), "4\\d\\d; alive"),
    "host: forwarded": ("replace the host", _bare("Host: evil.example", "X-Forwarded-Host: 127.0.0.1:$PORT", _BOB), "(403|421); alive"),
    "origin: other": ("send a request from another page", _bare(_HOST, _BOB, "Origin: http://evil.example"), "403; alive"),
    "origin: null": ("send a request from a page without an origin", _bare(_HOST, _BOB, "Origin: null"), "403; alive"),
    "origin: file": ("send a request from a file", _bare(_HOST, _BOB, "Origin: file://"), "403; alive"),
    "origin: prefix": ("use an origin that begins like the server's", _bare(_HOST, _BOB, "Origin: http://127.0.0.1:$PORT.evil.example"), "403; alive"),
    "origin: scheme": ("use another scheme of the same host", _bare(_HOST, _BOB, "Origin: https://127.0.0.1:$PORT"), "403; alive"),
    "http: old version": ("use HTTP/0.9", lambda port, session: b"GET /mcp\r\n\r\n", "(4\\d\\d|closed); alive"),
    "http: new version": ("use HTTP/2 without a handshake", lambda port, session: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "(4\\d\\d|505|closed); alive"),
    "http: no request": ("send bytes that are no request", lambda port, session: bytes(range(256)) * 100, "(4\\d\\d|closed); alive"),
    "http: handshake of TLS": ("start TLS", lambda port, session: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "(4\\d\\d|closed); alive"),
    "http: two lengths": ("smuggle a request by two lengths", _raw(_LIST_BODY, f"{_HEAD}\n{_LENGTH}\nContent-Length: 3"), "(4\\d\\d|closed); alive"),
    "http: length and chunks": ("smuggle a request by a length and chunks", _raw(b"0\r\n\r\nPOST /mcp HTTP/1.1\r\n\r\n", f"{_HEAD}\nContent-Length: 4\nTransfer-Encoding: chunked"), NO_EFFECT),
    "http: unknown encoding": ("smuggle a request by an unknown encoding", _raw(_LIST_BODY, f"{_HEAD}\n{_LENGTH}\nTransfer-Encoding: xchunked"), "(4\\d\\d|501|closed); alive"),
    "http: negative length": ("claim a negative length", _raw(_LIST_BODY, f"{_HEAD}\nContent-Length: -1"), "(4\\d\\d|closed); alive"),
    "http: huge length": ("claim a huge length", _raw(b"x", f"{_HEAD}\nContent-Length: 999999999999"), "(4\\d\\d|closed); alive"),
    "http: long length": ("claim a length with a hundred digits", _raw(b"x", f"{_HEAD}\nContent-Length: {'9' * 100}"), "(4\\d\\d|closed); alive"),
    "http: signed length": ("claim a length with a sign", _raw(_LIST_BODY, f"{_HEAD}\nContent-Length: +{len(_LIST_BODY)}"), "(4\\d\\d|closed); alive"),
    "http: huge chunk": ("claim a huge chunk", _raw(b"FFFFFFFFFFFFFFFF\r\nx", f"{_HEAD}\nTransfer-Encoding: chunked"), "(4\\d\\d|closed); alive"),
    "http: bad chunk": ("send a chunk without a size", _raw(b"zz\r\nx\r\n", f"{_HEAD}\nTransfer-Encoding: chunked"), "(4\\d\\d|closed); alive"),
    "http: long header": ("send a header of 1 MB", _bare(_HOST, _BOB, f"X-Long: {'x' * 1_000_000}"), "(4\\d\\d|closed); alive"),
    "http: many headers": ("send 20,000 headers", _bare(_HOST, _BOB, *(f"X-{n}: x" for n in range(20_000))), "(4\\d\\d|closed); alive"),
    "http: folded header": ("continue a header on the next line", _bare(_HOST, "Authorization:\r\n Bearer token-of-bob"), "(4\\d\\d|200|closed).*; alive"),
    "http: header without a name": ("send a header without a name", _bare(_HOST, ": x", _BOB), "(4\\d\\d|closed); alive"),
    "http: space before the colon": ("send a space before the colon", _bare(_HOST, "Authorization : Bearer token-of-bob"), "(4\\d\\d|closed); alive"),
    "http: null in a header": ("send a null in a header", _bare(_HOST, _BOB, "X-Null: a\x00b"), "(4\\d\\d|closed|200).*; alive"),
    "http: long line": ("ask for a long path", _raw(b"", "", f"GET /{'x' * 200_000} HTTP/1.1"), "(4\\d\\d|closed); alive"),
    "path: above": ("ask for a file", _raw(b"", "", "GET /../../../../etc/passwd HTTP/1.1"), "4\\d\\d; alive"),
    "path: encoded": ("ask for a file in another notation", _raw(b"", "", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"), "4\\d\\d; alive"),
    "path: absolute": ("use the server as a proxy", _raw(b"", "", "GET http://127.0.0.1:22/ HTTP/1.1"), "4\\d\\d; alive"),
    "path: metadata": ("use the server as a proxy to the metadata", _raw(b"", "", "GET http://169.254.169.254/ HTTP/1.1"), "4\\d\\d; alive"),
    "path: null": ("end a path by a null", _raw(b"", "", "GET /mcp%00/x HTTP/1.1"), "4\\d\\d; alive"),
    "path: double slash": ("ask for a path with two slashes", _raw(_LIST_BODY, _HEAD, "POST //mcp HTTP/1.1"), "4\\d\\d; alive"),
    "method: connect": ("open a tunnel", _raw(b"", "", "CONNECT 127.0.0.1:22 HTTP/1.1"), "4\\d\\d; alive"),
    "method: trace": ("reflect a token", _raw(b"", "", "TRACE /mcp HTTP/1.1"), "4\\d\\d; alive"),
    "method: put": ("write a file", _raw(b"x", "", "PUT /mcp HTTP/1.1"), "4\\d\\d; alive"),
    "method: override": ("override the method", _raw(b"", "X-HTTP-Method-Override: DELETE", "GET /metrics HTTP/1.1"), NO_EFFECT),
    "method: upgrade": ("upgrade to a web socket", _raw(b"", "Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Key: x\nSec-WebSocket-Version: 13", "GET /mcp HTTP/1.1"), "4\\d\\d; alive"),
    "body: not JSON": ("send bytes that are not JSON", _post(b"\xff\xfe\x00"), REFUSED),
    "body: empty": ("send nothing", _post(b""), REFUSED),
    "body: null": ("send null", _post(b"null"), REFUSED),
    "body: number": ("send a number", _post(b"7"), REFUSED),
    "body: text": ("send a text", _post(b'"tools/list"'), REFUSED),
    "body: batch": ("send a batch", _post(b"[" + b",".join([_LIST_BODY] * 100) + b"]"), REFUSED),
    "body: deep": ("exhaust the stack", _post(_DEEP), REFUSED),
    "body: deep list": ("exhaust the stack by lists", _post(b"[" * 100_000 + b"]" * 100_000), REFUSED),
    "body: many values": ("take memory by small values", _post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":[' + b"[]," * 300_000 + b"1]}}"), REFUSED),
    "body: huge number": ("send a number of 100,000 digits", _post(b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"tools/list"}'), REFUSED),
    "body: infinity": ("send an infinite number", _post(b'{"jsonrpc":"2.0","id":Infinity,"method":"tools/list"}'), REFUSED),
    "body: duplicate keys": ("send a key twice", _post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}'), REFUSED),
    "body: half a character": ("send half a surrogate pair", _post(b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/list"}'), REFUSED),
    "body: compressed": ("send a compressed bomb", _post(b"\x1f\x8b\x08" + bytes(1000), **{"Content-Encoding": "gzip"}), REFUSED),
    "body: other type": ("send a form", _post(_LIST_BODY, **{"Content-Type": "application/x-www-form-urlencoded"}), REFUSED),
    "body: other text": ("send text in UTF-16", _post(json.dumps(_LIST).encode("utf-16"), **{"Content-Type": "application/json; charset=utf-16"}), NO_EFFECT),
    "body: version": ("use another JSON-RPC", _post({**_LIST, "jsonrpc": "1.0"}), REFUSED),
    "body: id": ("use an object as an id", _post({**_LIST, "id": {"a": 1}}), REFUSED),
    "body: method": ("use a number as a method", _post({**_LIST, "method": 7}, **{"Mcp-Method": "7"}), REFUSED),
    "body: params": ("use a list as parameters", _post({**_LIST, "params": [1]}), REFUSED),
    "header: other method": ("name another method in a header", _post(_LIST, **{"Mcp-Method": "ping"}), REFUSED),
    "header: other tool": ("name another tool in a header", _post(request("tools/call", {"name": "counter_echo", "arguments": {"text": "x"}}), **{"Mcp-Name": "counter_add"}), REFUSED),
    "header: version": ("use an unknown version of the protocol", _post(_LIST, **{"Mcp-Protocol-Version": "9999-01-01"}), REFUSED),
    "header: connection": ("use a connection that does not exist", _post(_LIST, **{"Mcp-Session-Id": "f" * 32}), NO_EFFECT),
    "header: last event": ("resume the stream of another client", _raw(b"", "Accept: text/event-stream\nLast-Event-ID: 0", "GET /mcp HTTP/1.1"), "4\\d\\d; alive"),
    "method: unknown": ("call an unknown method", _ask("tools/evil"), REFUSED),
    "method: private": ("call a method of the server's object", _ask("__class__"), REFUSED),
    "method: sampling": ("ask the server for a sample", _ask("sampling/createMessage", messages=[], maxTokens=1), REFUSED),
    "method: roots": ("ask the server for its roots", _ask("roots/list"), REFUSED),
    "method: newline": ("name a method on two lines", _post({**_LIST, "method": "tools/list\r\nX: y"}, **{"Mcp-Method": "tools/list"}), REFUSED),
    "resource: file": ("read a file as a resource", _ask("resources/read", uri="file:///etc/passwd"), REFUSED),
    "resource: above": ("read a file above a resource", _ask("resources/read", uri="agentflow://results/../../../etc/passwd"), REFUSED),
    "resource: address": ("read an address as a resource", _ask("resources/read", uri="http://169.254.169.254/"), REFUSED),
    "resource: of another": ("read a resource of another session", _ask("resources/read", uri="agentflow://$SESSION/1"), REFUSED),
    "tool: unknown": ("call an unknown tool", _call("evil"), REFUSED),
    "tool: private": ("call a method that is no tool", _call("counter_fork"), REFUSED),
    "tool: warmup": ("call a method of the lifecycle", _call("counter_shutdown"), REFUSED),
    "tool: dunder": ("call a method of the object", _call("counter___init__"), REFUSED),
    "tool: long name": ("call a tool with a long name", _post(request("tools/call", {"name": "x" * 100_000}), **{"Mcp-Name": "x"}), REFUSED),
    "tool: arguments": ("send a list as arguments", _post(request("tools/call", {"name": "counter_echo", "arguments": [1]})), REFUSED),
    "tool: unknown arguments": ("send 5,000 unknown arguments", _call("counter_echo", text="x", **{f"a{n}": n for n in range(5_000)}), REFUSED),
    "tool: prototype": ("send names of special attributes", _call("counter_add", session="x", __class__="x", __dict__={}), REFUSED),
    "tool: wrong type": ("send an object as text", _call("counter_echo", text={"a": 1}), REFUSED),
    "session: of another": ("use a session of another token", _call("counter_add", session="$SESSION"), "200 error session_not_found; alive"),
    "session: fork another's": ("fork a session of another token", _call("session_fork", session="$SESSION"), "200 error session_not_found; alive"),
    "session: end another's": ("end a session of another token", _call("session_end", session="$SESSION"), "200 error session_not_found; alive"),
    "session: guess": ("guess a session", _call("counter_add", session="session-0"), "200 error session_not_found; alive"),
    "session: empty": ("use an empty session", _call("counter_add", session=""), "200 error session_not_found; alive"),
    "session: prefix": ("use the beginning of a session", _call("counter_add", session="$SESSION"[:4]), "200 error session_not_found; alive"),
    "session: path": ("use a path as a session", _call("counter_add", session="../$SESSION"), "200 error session_not_found; alive"),
    "session: list": ("use a list of sessions", _call("counter_add", session=["$SESSION"]), "200 error bad_arguments; alive"),
    "session: wildcard": ("use a pattern as a session", _call("counter_add", session="*"), "200 error session_not_found; alive"),
    "session: query": ("use a query as a session", _call("counter_add", session="' OR 1=1 --"), "200 error session_not_found; alive"),
    "session: settings": ("start a session with settings of an unknown backend", _call("session_start", settings={"evil": {"a": 1}}), REFUSED),
    "meta: progress": ("use an object as a progress token", _post(request("tools/call", {"name": "counter_echo", "arguments": {"text": "x"}, "_meta": {"progressToken": {"a": 1}}})), NO_EFFECT),
    "meta: client": ("pretend to be another client", _post(request("tools/call", {"name": "counter_add", "arguments": {"session": "$SESSION"}, "_meta": {"principal": "alice"}})), "200 error session_not_found; alive"),
    "endpoint: metrics": ("read the metrics without a token", _raw(b"", f"{_HOST}\nConnection: close", "GET /metrics HTTP/1.1", usual=False), "(401|404); alive"),
    "endpoint: documentation": ("read the description of the server", _raw(b"", "", "GET /openapi.json HTTP/1.1"), "404; alive"),
    "endpoint: debugger": ("open a debugger", _raw(b"", "", "GET /console HTTP/1.1"), "404; alive"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(
    CATEGORY, {name: (aim, name, seen) for name, (aim, _, seen) in _TABLE.items()}
)


def _told(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        return "closed"
    status = head.split()[1].decode()
    if status != "200":
        return status
    text = body.decode("utf-8", "replace")
    for kind in ("session_not_found", "bad_arguments"):
        if f'"{kind}"' in text:
            return f"200 error {kind}"
    return "200 error" + " other" if '"error"' in text or '"isError":true' in text else "200"


async def _send(server: HttpServer, data: bytes, *, ends: bool) -> bytes:
    answer = b""
    async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
        try:
            await stream.send(data)
            if ends:
                await stream.send_eof()
            while len(answer) < 1 << 20:
                answer += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
            pass
    return answer


async def observe(server: HttpServer, table: Iterable[Attack]) -> dict[str, str]:
    """Send each request as one client, and use a session as another one; return the outcomes by id."""
    seen: dict[str, str] = {}
    async with connected(server.url, TOKENS["alice"]) as alice:
        started = await alice.call_tool("session_start", {})
        assert started.structured_content is not None
        session = str(started.structured_content["session"])
        for number, attack in enumerate(table, 1):
            with anyio.fail_after(60):
                answer = await _send(
                    server, _TABLE[attack.code][1](server.port, session), ends=attack.code in UNFINISHED
                )
                counted = await alice.call_tool("counter_add", {"session": session})
            alive = "alive" if counted.structured_content == {"count": number} else "changed"
            seen[attack.id] = f"{_told(answer)}; {alive}"
    return seen
