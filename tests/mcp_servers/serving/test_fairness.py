"""A client with a valid token that takes all it can get leaves another client its share."""

import json
import socket
from contextlib import ExitStack

import anyio
import anyio.to_thread
import httpx2
import pytest

from mcp_servers import ClientQuota, HttpOptions, TableLimits, ToolTable
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import headers_of, post, request, serving

TOKENS = {"attacker": "token-1", "client": "token-2"}
CLIENTS = dict.fromkeys(TOKENS, ClientQuota())
HALF_OPEN = 300
LONG_CALLS = 40


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@pytest.mark.promise("mcp:quota:reserves")
@pytest.mark.promise("mcp:http:unidentified")
async def test_a_client_works_while_another_takes_sessions_slots_and_connections(counter: Counter) -> None:
    options = HttpOptions(
        port=0, tokens=TOKENS, max_concurrent_calls=16, max_waiting_calls=16, grace_seconds=0.1
    )
    limits = TableLimits(sessions=16, clients=CLIENTS)
    async with (
        ToolTable([counter], limits=limits) as table,
        serving(table, options) as server,
        httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=None)) as http,
    ):

        async def call(name: str, tool: str, **arguments: object) -> dict[str, object]:
            message = request("tools/call", {"name": tool, "arguments": arguments})
            answer = await post(http, server.url, message, bearer(name))
            return answer.json()["result"].get("structuredContent") or {}

        with anyio.fail_after(120), ExitStack() as stack:

            def open_half() -> None:
                for _ in range(HALF_OPEN):
                    sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    sock.sendall(b"POST /mcp HTTP/1.1\r\n")

            await anyio.to_thread.run_sync(open_half)
            sessions: list[str] = []
            while started := await call("attacker", "session_start"):
                sessions.append(str(started["session"]))
            assert len(sessions) == 12
            refused: list[None] = []

            async def wait(session: str) -> None:
                if not await call("attacker", "counter_wait", session=session):
                    refused.append(None)

            async with anyio.create_task_group() as group:
                for number in range(LONG_CALLS):
                    group.start_soon(wait, sessions[number % 12])
                # Of forty, twelve run, and twelve wait.
                while len(refused) < LONG_CALLS - 24:
                    await anyio.lowlevel.checkpoint()
                message = request("tools/call", {"name": "session_list", "arguments": {}})
                many = json.dumps(dict.fromkeys(map(str, range(30_000)), 0)).encode()
                content = json.dumps(message).encode().replace(b'"arguments": {}', b'"arguments": ' + many)
                headers = {**headers_of(message), **bearer("attacker")}
                assert (await http.post(server.url, content=content, headers=headers)).status_code == 413
                client_sessions = [str((await call("client", "session_start"))["session"]) for _ in range(4)]
                for number in range(1, 4):
                    for session in client_sessions:
                        assert await call("client", "counter_add", session=session) == {"count": number}
                assert len(refused) == LONG_CALLS - 24
                counter.release.set()
            assert len(refused) == LONG_CALLS - 24
