"""Concurrent calls, blocked backends, and long mixed load."""

import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from mcp_servers import Backend, HttpOptions, Output, ToolTable, tool
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._program import program
from tests.mcp_servers._serving import connected, post, request, serving
from tests.mcp_servers.serving.test_command import address

AT_ONCE = 8
CLIENTS = 4
"""Number of clients in the mixed load."""
SHORT_ROUNDS = 2
"""Rounds per client, in the short form."""
SOAK_SECONDS = float(os.environ.get("AGENTFLOW_SOAK_SECONDS", "3600"))
"""Duration of the long form in seconds."""
SLACK = 24 * 1024 * 1024
"""Allowed memory growth in bytes: what Python keeps for later."""
ECHO = request("tools/call", {"name": "counter_echo", "arguments": {"text": "x"}})


class Met(Output):
    """Number of concurrent calls."""

    number: int
    """The number."""


class Slow(Backend):
    """Its calls wait for one another, or until they are released."""

    name = "slow"
    description = "Waits."

    def __init__(self) -> None:
        self.running = 0
        self.let_go = anyio.Event()
        self._all_here = anyio.Event()

    @tool(read_only=True)
    async def meet(self) -> Met:
        """Wait until eight calls run: sequential calls never finish."""
        self.running += 1
        if self.running == AT_ONCE:
            self._all_here.set()
        await self._all_here.wait()
        return Met(number=self.running)

    @tool(read_only=True)
    async def hold(self) -> Met:
        """Wait until released."""
        self.running += 1
        await self.let_go.wait()
        return Met(number=self.running)


@asynccontextmanager
async def slow_server(slow: Slow, at_once: int) -> AsyncGenerator[tuple[str, httpx2.AsyncClient]]:
    """Serve a slow and a quick backend, and yield a client."""
    limits = httpx2.Limits(max_connections=None)
    async with (
        ToolTable([slow, Counter()]) as table,
        serving(table, HttpOptions(port=0, max_concurrent_calls=at_once)) as server,
        httpx2.AsyncClient(timeout=60, limits=limits) as http,
    ):
        yield server.url, http


def calling(name: str) -> dict[str, object]:
    """Return the request that calls a tool."""
    return request("tools/call", {"name": name, "arguments": {}})


@pytest.mark.promise("mcp:load:concurrent")
async def test_slow_calls_on_one_backend_run_concurrently() -> None:
    answers: list[int] = []

    async def meet(http: httpx2.AsyncClient, url: str) -> None:
        answer = await post(http, url, calling("slow_meet"))
        answers.append(answer.json()["result"]["structuredContent"]["number"])

    with anyio.fail_after(60):
        async with slow_server(Slow(), AT_ONCE) as (url, http), anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(meet, http, url)
    assert answers == [AT_ONCE] * AT_ONCE


@pytest.mark.promise("mcp:load:blocked")
async def test_a_blocked_backend_without_free_slots_delays_no_other() -> None:
    slow, answers = Slow(), 0

    async def call(http: httpx2.AsyncClient, url: str) -> None:
        nonlocal answers
        assert (await post(http, url, calling("slow_hold"))).status_code == 200
        answers += 1

    with anyio.fail_after(60):
        async with slow_server(slow, 2) as (url, http), anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(call, http, url)
            while slow.running < 2:
                await anyio.lowlevel.checkpoint()
            for _ in range(50):
                assert (await post(http, url, ECHO)).json()["result"]["structuredContent"] == {"text": "x"}
            assert (slow.running, answers) == (2, 0)
            slow.let_go.set()
    assert answers == AT_ONCE


async def work(url: str, rounds: int, until: float) -> None:
    """Run sessions with all backends one after the other: so many rounds, and until that time."""
    async with connected(url, "t") as client:

        async def call(name: str, **arguments: object) -> dict[str, object]:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result
            return dict(result.structured_content or {})

        while rounds > 0 or time.monotonic() < until:
            rounds -= 1
            session = (await call("session_start"))["session"]
            await call("bash_run", session=session, command="seq 100 > numbers; wc -l numbers")
            await call("code_run", session=session, code="x = [0] * 100_000; len(x)")
            await call("files_read", session=session, path="numbers")
            fork = (await call("session_fork", session=session))["session"]
            assert str((await call("code_run", session=fork, code="len(x)"))["value"]) == "100000"
            missing = await client.call_tool("files_read", {"session": fork, "path": "nothing"})
            assert missing.is_error
            for handle in (session, fork):
                await call("session_end", session=handle)


async def figures(url: str) -> tuple[int, int]:
    """Return memory and descriptors of the idle server without sessions."""
    async with httpx2.AsyncClient(timeout=60) as http:
        while True:
            answer = await http.get(url.replace("/mcp", "/metrics"), headers={"Authorization": "Bearer t"})
            samples: dict[str, str] = dict(re.findall(r"^(\w+) (\S+)$", answer.text, re.MULTILINE))
            if samples["agentflow_sessions"] == "0":
                return int(samples["process_resident_memory_bytes"]), int(samples["process_open_fds"])


async def mixed_load(rounds: int, seconds: float) -> None:
    """Check that concurrent load leaves memory and descriptors as after a first round."""
    words = ("bash", "code", "files", "--http", "127.0.0.1:0", "runtime={name: process, idle: false}")
    async with program(*words, environment={"AGENTFLOW_SERVER_TOKEN": "t"}) as running:
        url = await address(running)

        async def load(rounds: int, seconds: float) -> tuple[int, int]:
            until = time.monotonic() + seconds
            async with anyio.create_task_group() as group:
                for _ in range(CLIENTS):
                    group.start_soon(work, url, rounds, until)
            return await figures(url)

        memory, descriptors = await load(1, seconds / 10)
        more_memory, more_descriptors = await load(rounds, seconds)
        # The number of pooled sessions may differ now; a leak shows in every round of every client.
        assert more_descriptors <= descriptors + CLIENTS
        assert more_memory <= memory * 1.1 + SLACK


async def session_of_calls(url: str, rounds: int, made: list[int]) -> None:
    """Make four calls a round in a session of a connection of its own; each answer depends on all before it."""
    async with connected(url, "t") as client:

        async def call(name: str, **arguments: object) -> dict[str, object]:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result
            made.append(1)
            return dict(result.structured_content or {})

        session = (await call("session_start"))["session"]
        for number in range(1, rounds + 1):
            line = await call("bash_run", session=session, command="echo x >> log; wc -l < log")
            assert str(line["stdout"]).strip() == str(number)
            code = await call("code_run", session=session, code="n = globals().get('n', 0) + 1; n")
            assert str(code["value"]) == str(number)
            await call("files_write", session=session, path="note", content=f"note {number}\n")
            note = await call("files_read", session=session, path="note")
            assert f"note {number}" in str(note["content"])
        await call("session_end", session=session)


async def lost_calls(sessions: int, rounds: int) -> int:
    """Return how many calls of sessions at once were lost; a failed one ends its session."""
    made: list[int] = []
    words = ("bash", "code", "files", "--http", "127.0.0.1:0", f"sessions.max_sessions={sessions}")
    async with program(*words, environment={"AGENTFLOW_SERVER_TOKEN": "t"}) as running:
        url = await address(running)
        async with anyio.create_task_group() as group:
            for _ in range(sessions):
                group.start_soon(session_of_calls, url, rounds, made)
    return sessions * (4 * rounds + 2) - len(made)


@pytest.mark.promise("mcp:load:lossless")
@pytest.mark.parametrize(("sessions", "rounds"), [(15, 8), pytest.param(300, 8, marks=pytest.mark.soak)])
async def test_no_call_of_many_sessions_at_once_is_lost(sessions: int, rounds: int) -> None:
    assert await lost_calls(sessions, rounds) == 0


@pytest.mark.promise("mcp:load:flat")
async def test_mixed_load_leaves_memory_and_descriptors_flat() -> None:
    with anyio.fail_after(100):
        await mixed_load(SHORT_ROUNDS, 0)


@pytest.mark.soak
@pytest.mark.promise("mcp:load:flat")
async def test_mixed_load_for_long_leaves_memory_and_descriptors_flat() -> None:
    await mixed_load(SHORT_ROUNDS, SOAK_SECONDS)
