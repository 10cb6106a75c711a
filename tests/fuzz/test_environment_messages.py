"""Messages to the gateway, `serve-env` and servers of environments, and to the client of OpenEnv: an answer or a refusal."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal

import aiohttp
import anyio
import pytest
from aiohttp import web
from hypothesis import strategies as st

from agentflow.gateway import GatewaySettings
from agentflow.http_server import serving
from agentflow.interop import serve_tasks
from agentflow.readers import OpenEnvClient, OpenEnvFailure, serve_environments
from tests.agentflow.gateway._registry import offers, registry_at, served
from tests.agentflow.interop._served import opened
from tests.agentflow.readers.test_environments import COUNTING
from tests.fuzz._forms import forms
from tests.fuzz.test_server_answers import ODD, parts_of, with_odd

pytestmark = pytest.mark.promise("interop:fuzzed")

TOKEN = "token-of-the-owner"
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
ROUTES: dict[str, tuple[tuple[str, str, object], ...]] = {
    "gateway": (
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions", {**CHAT, "stream": True, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ("POST", "/v1/responses", {"model": "policy", "input": "x", "previous_response_id": "r"}),
        ("POST", "/v1/messages", {"model": "policy", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 3}),
        ("POST", "/v1/messages/count_tokens", {"model": "policy", "messages": [{"role": "user", "content": "x"}]}),
        ("GET", "/v1/models/policy", None),
        ("POST", "/swarm/episodes", {"task": {"id": "t", "question": "q"}, "mode": "train", "agents": [""], "wait": 0}),
        ("POST", "/swarm/episodes/1%2F0/end", {"attempt": 1, "end_id": "e", "reward": 1.0, "metrics": {"a": 1.0}}),
        ("POST", "/swarm/episodes/1%2F0/abort", {"attempt": 1, "why": "x"}),
        ("POST", "/swarm/episodes/1%2F0/alive", {"attempt": 1}),
        ("PUT", "/swarm/episodes/1%2F0/reward", {"attempt": 1, "reward": {"a": 1.0}}),
        ("GET", "/swarm/episodes/1%2F0/tokens?attempt=1", None),
        ("GET", "/swarm/episodes/1%2F0/calls?attempt=1", None),
        ("GET", "/swarm/status", None),
        ("POST", "/swarm/offers", {"offers": [{"id": "1/0", "group": "1", "task": {"index": 0, "id": "1", "question": "q"}, "seed": "s"}], "only": False}),
        ("GET", "/swarm/ended?after=0&wait=0", None),
        ("POST", "/swarm/episodes/1%2F0/score", {"attempt": 1, "outcome": {"reward": 1.0}}),
        ("POST", "/swarm/use", {"ids": ["1/0"], "step": 1}),
        ("POST", "/swarm/withdraw", {"ids": ["1/0"], "why": "x"}),
        ("PUT", "/swarm/version", {"version": 1}),
    ),
    "serve-env": (
        ("POST", "/sessions", {"task": "none", "number": 1}),
        ("POST", "/sessions/x/call", {"tool": "t", "arguments": {}}),
        ("POST", "/sessions/x/submit", {"answer": "a"}),
        ("DELETE", "/sessions/x", None),
        ("POST", "/agentflow/task", {"split": "train", "index": 1}),
        ("POST", "/agentflow/task_range", {"start": 0, "stop": 1}),
        ("POST", "/agentflow/tasks", {"split": "train"}),
        ("GET", "/schema", None),
        ("GET", "/ws", None),
    ),
    "environment": (
        ("POST", "/get_env_profile", {"env_type": "default", "params": {"split": "train"}}),
        ("POST", "/create", {"env_type": "default", "task_id": "2", "instance_id": "a"}),
        ("POST", "/step", {"instance_id": "a", "messages": {"role": "assistant", "content": "x"}}),
        ("POST", "/evaluate", {"instance_id": "a"}),
        ("POST", "/get_info", {"instance_id": "a", "messages": [], "params": {}}),
        ("POST", "/release", {"instance_id": "a"}),
    ),
}  # fmt: skip
HEADERS: tuple[tuple[str, str], ...] = (
    ("Authorization", ""), ("Authorization", "Bearer"), ("Authorization", "Bearer \udcff"), ("Authorization", "Basic x"), ("Authorization", f"Bearer {TOKEN}"),
    ("x-api-key", "\udcff"), ("X-AgentFlow-Client", "c_\udcff"), ("X-AgentFlow-Client", "c_x.y"), ("Host", "\udcff"), ("Host", "[::1"), ("Host", "evil.example"), ("Host", ""),
    ("Host", "127.0.0.1:99999999"), ("Origin", "null"), ("Origin", "http://\udcff"), ("traceparent", "00-\udcff"), ("traceparent", "00-" + "0" * 32 + "-" + "f" * 16 + "-01"),
    ("x-stainless-retry-count", "²"), ("anthropic-version", "\udcff"), ("Content-Type", "text/\udcff; charset=\udcff"), ("Content-Encoding", "gzip"), ("Content-Encoding", "deflate"),
    ("Content-Encoding", "br"), ("Content-Encoding", "\udcff"), ("Cookie", "\udcff=;;"), ("Range", "bytes=-1"), ("If-Modified-Since", "\udcff"),
    ("Sec-WebSocket-Key", "\udcff"), ("Sec-WebSocket-Version", "13"), ("Upgrade", "websocket"), ("Accept-Encoding", "gzip"),
)  # fmt: skip
PATHS = (
    "",
    "",
    "",
    "",
    "?",
    "?a=%ff&attempt=²",
    "/%00",
    "/..%2f..",
    "//",
    "%ff",
    "\udcff",
    "?attempt=" + "9" * 5_000,
    "#x",
)


def changed(template: object) -> st.SearchStrategy[bytes]:
    """Return bodies: a template, mostly with an odd value in the place of one of its own."""
    changed = with_odd(parts_of(template))
    whole = st.just(json.dumps(template).encode())
    return st.one_of(changed, changed, whole, st.sampled_from(ODD), st.binary(max_size=40))


def requests(server: str) -> st.SearchStrategy[tuple[str, str, str, bytes]]:
    """Return requests: server, method, path and body."""
    return st.one_of(
        [
            st.tuples(
                st.just(server),
                st.sampled_from((method, method, method, "GET", "POST", "OPTIONS", "BREW")),
                st.sampled_from([path + end for end in PATHS]),
                st.just(b"") if template is None else changed(template),
            )
            for method, path, template in ROUTES[server]
        ]
    )


class Servers:
    """Addresses of servers, and the key of an episode of the gateway."""

    def __init__(self, **urls: str) -> None:
        self.urls = urls
        self.key = ""

    async def send(
        self, server: str, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        port = int(self.urls[server].rpartition(":")[2])
        usual = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body)), "Connection": "close"}
        if server != "serve-env":
            usual["Authorization"] = f"Bearer {self.key if path.startswith('/v1') else TOKEN}"
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in {**usual, **dict(headers)}.items()),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body)
        received = b""
        with suppress(ConnectionError):
            received = await reader.read()
        writer.transport.abort()
        head, _, content = received.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]) if head else 0, content


@pytest.fixture(scope="module")
async def servers(
    anyio_backend: Literal["asyncio"], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Servers]:
    """Yield a gateway with an episode, `serve-env` and a server of environments."""
    settings = GatewaySettings.model_validate({"token": TOKEN})
    folder = tmp_path_factory.mktemp("servers")
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(registry_at(folder / "gateway", settings))
        host = await stack.enter_async_context(opened(folder))
        found = Servers(
            **{
                "gateway": await stack.enter_async_context(served(registry, settings)),
                "serve-env": await stack.enter_async_context(serve_tasks(host, token="")),
                "environment": await stack.enter_async_context(
                    serve_environments({"default": COUNTING}, token=TOKEN)
                ),
            }
        )
        places = json.dumps({"offers": [json.loads(_encoded(offer)) for offer in offers(size=4)]}).encode()
        assert (await found.send("gateway", "POST", "/swarm/offers", (), places))[0] == 200
        await renew(found)
        yield found


def _encoded(value: object) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


async def renew(servers: Servers) -> None:
    """Begin an episode whose key works."""
    task = {"id": f"own-{anyio.current_time()}", "question": "q"}
    status, content = await servers.send(
        "gateway", "POST", "/swarm/episodes", (), json.dumps({"task": task}).encode()
    )
    if status == 200:
        servers.key = next(iter(json.loads(content)["keys"].values()))


async def check_request(
    servers: Servers, request: tuple[str, str, str, bytes], headers: Sequence[tuple[str, str]]
) -> None:
    server, method, path, body = request
    with anyio.fail_after(30):
        status, content = await servers.send(server, method, path, headers, body)
        assert status < 500, content
        assert b"Traceback" not in content
        witness = {"gateway": "/v1/models", "serve-env": "/health", "environment": "/health"}[server]
        answered = await servers.send(server, "GET", witness, (), b"")
        if server == "gateway" and answered[0] != 200:
            await renew(servers)
            answered = await servers.send(server, "GET", witness, (), b"")
        assert answered[0] in (200, 404), answered


test_any_request_is_answered_or_refused, test_any_request_is_answered_or_refused_long = forms(
    check_request,
    short=250,
    request=st.one_of([requests(server) for server in ROUTES]),
    headers=st.lists(st.sampled_from(HEADERS), max_size=2),
    examples=[
        {"request": (server, "POST", path, b"{}"), "headers": [("Authorization", "Bearer \udcff")]}
        for server, path in (("gateway", "/swarm/status"), ("environment", "/create"))
    ],
)


MESSAGES: tuple[object, ...] = (
    {"type": "reset", "data": {"task": "none", "seed": 1, "episode_id": "e"}},
    {"type": "step", "data": {"tool": "bash_run", "arguments": {"command": "true"}, "answer": "x"}},
    {"type": "state", "data": {}},
    {"type": "mcp"},
)


async def check_episode(servers: Servers, messages: Sequence[bytes], text: bool) -> None:
    async with aiohttp.ClientSession(servers.urls["serve-env"]) as session:
        with anyio.fail_after(30):
            async with session.ws_connect("/ws") as socket:
                for message in messages:
                    await socket.send_frame(
                        message, aiohttp.WSMsgType.TEXT if text else aiohttp.WSMsgType.BINARY
                    )
                    answer = await socket.receive()
                    if answer.type is not aiohttp.WSMsgType.TEXT:
                        # Text that is none.
                        assert answer.type is aiohttp.WSMsgType.CLOSE
                        break
                    assert json.loads(answer.data)["type"] in ("error", "state", "observation")
                else:
                    await socket.send_json({"type": "state"})
                    assert (await socket.receive_json())["type"] == "state"
            async with session.get("/health") as response:
                assert response.status == 200


test_any_message_of_an_episode_is_answered, test_any_message_of_an_episode_is_answered_long = forms(
    check_episode,
    short=80,
    messages=st.lists(st.one_of([changed(template) for template in MESSAGES]), max_size=3),
    text=st.sampled_from((True, True, True, False)),
)


FRAMES: tuple[bytes, ...] = (
    b"\x81\x05hello", b"\x81\xff" + b"\xff" * 8, b"\x81\xfe\x00\x05" + bytes(9), b"\x8f\x80" + bytes(4), b"\xf1\x80" + bytes(4), b"\x01\x80" + bytes(4),
    b"\x00\x80" + bytes(4), b"\x89\xfe\x00\x7e" + bytes(130), b"\x09\x80" + bytes(4), b"\x88\x81" + bytes(5), b"\x88\x82" + bytes(4) + b"\xff\xff", b"\x81\x81" + bytes(4) + b"\xff",
    b"\x81\xff\x00\x00\x00\x01\x00\x00\x00\x00" + bytes(4), b"\xc1\x81" + bytes(5), b"\x81", b"\x82\x80" + bytes(4), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x8a\x80" + bytes(4),
)  # fmt: skip


async def check_frames(servers: Servers, frames: Sequence[bytes]) -> None:
    port = int(servers.urls["serve-env"].rpartition(":")[2])
    with anyio.fail_after(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        with suppress(OSError):
            for frame in frames:
                writer.write(frame)
                await writer.drain()
            writer.write_eof()
            await reader.read()
        writer.transport.abort()
        assert (await servers.send("serve-env", "GET", "/health", (), b""))[0] == 200


test_any_frames_of_an_episode_leave_the_server_up, test_any_frames_of_an_episode_leave_the_server_up_long = (
    forms(
        check_frames,
        short=60,
        frames=st.lists(st.one_of(st.sampled_from(FRAMES), st.binary(max_size=30)), max_size=4),
    )
)


ANSWERS: tuple[object, ...] = (
    {"type": "observation", "data": {"observation": {"text": "x"}, "reward": 0.5, "done": False}},
    {"type": "error", "data": {"message": "no", "code": "X"}},
    {"type": "state", "data": {"episode_id": "e", "step_count": 1}},
)


@asynccontextmanager
async def lying_environment(answer: bytes, kind: aiohttp.WSMsgType) -> AsyncGenerator[str]:
    """Serve an environment that answers each message with one frame."""

    async def play(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with suppress(ConnectionError):
            async for _ in socket:
                await socket.send_frame(answer, kind)
        return socket

    app = web.Application()
    app.router.add_get("/ws", play)
    async with serving(app) as url:
        yield url


async def check_client(answer: bytes, kind: aiohttp.WSMsgType) -> None:
    async with lying_environment(answer, kind) as url:
        with anyio.fail_after(30):
            async with OpenEnvClient(url) as environment:
                calls: tuple[Any, ...] = (
                    environment.reset,
                    lambda: environment.step({"message": "x"}),
                    environment.state,
                )
                for call in calls:
                    try:
                        await call()
                    except OpenEnvFailure as failure:
                        assert "\n" not in str(failure)
                        assert len(str(failure)) < 1_000


test_any_answer_of_an_openenv_environment_is_used_or_refused, test_any_answer_of_an_openenv_environment_is_used_or_refused_long = forms(
    check_client,
    short=60,
    answer=st.one_of([changed(template) for template in ANSWERS]),
    kind=st.sampled_from(
        (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.CLOSE)
    ),
    examples=[
        {"answer": b'{"type":"observation","data":{"observation":{},"reward":%s}}' % (b"9" * 400), "kind": aiohttp.WSMsgType.TEXT},
        {"answer": b"[" * 20_000, "kind": aiohttp.WSMsgType.TEXT},
        {"answer": b'{"type":"error","data":{"message":"two\\nlines"}}', "kind": aiohttp.WSMsgType.TEXT},
    ],
)  # fmt: skip
