"""Several worker processes behind one port, each with its own sessions."""

import os
import sys
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import httpx2
import psutil
import pytest
from mcp import Client, MCPError
from mcp_types import BlobResourceContents, CallToolResult, ResourceLink

from mcp_servers.core import ERROR_KEY
from mcp_servers.core._call import KIND_KEY
from mcp_servers.serving._http import listen
from mcp_servers.serving._metrics import Metrics, together
from mcp_servers.serving._server_names import handles_of, server_of, split_connection
from mcp_servers.serving._settings import ServerSettings
from mcp_servers.serving._workers import WorkerServer
from tests._processes import commands
from tests.mcp_servers._counter import noise
from tests.mcp_servers._program import COUNTER, program
from tests.mcp_servers._serving import LEGACY, connected, headers_of, opened, post, request
from tests.mcp_servers.serving.test_command import address

TOKENS = {"alice": "token-of-alice", "bob": "token-of-bob", "carol": "token-of-carol"}
BLOCKER = "tests.mcp_servers._counter:Blocker"
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


@dataclass(frozen=True)
class TwoWorkerServer:
    """A server with two workers."""

    url: str
    """URL of the server."""

    def client(self, mode: str = "auto", name: str = "alice") -> AbstractAsyncContextManager[Client]:
        """A connected client."""
        return connected(self.url, TOKENS[name], mode)

    def kill(self, number: int) -> None:
        """Kill a worker."""
        command = [sys.executable, "-m", "mcp_servers.serving._worker", str(number)]
        (worker,) = (process for process, words in commands() if words == command)
        worker.kill()


@pytest.fixture(scope="module")
async def crew(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[TwoWorkerServer]:
    """Start two workers for the whole module, because their start takes seconds."""
    settings = ServerSettings.model_validate(
        {
            "backends": {COUNTER: {}, BLOCKER: {}, "files": {}},
            "workers": 2,
            "port": 0,
            "tokens": {**TOKENS, "carol": {"token": TOKENS["carol"], "backends": ["files"]}},
            "calls": {"body_bytes": 100_000},
        }
    )
    async with worker_server(settings, ["counter", "blocker", "files"]) as url:
        yield TwoWorkerServer(url)


@asynccontextmanager
async def worker_server(settings: ServerSettings, names: Sequence[str]) -> AsyncGenerator[str]:
    """Serve with workers; yield the URL."""
    with listen(settings.host, settings.port) as listener:
        options = settings.http_options(settings.principal_tokens())
        server = WorkerServer(settings, names, options, listener)
        ready = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, ready.set)
            with anyio.fail_after(60):
                await ready.wait()
            yield server.url
            server.stop()


def data(result: CallToolResult) -> dict[str, Any]:
    """The data of a call that must succeed."""
    assert not result.is_error, result
    assert result.structured_content is not None
    return cast("dict[str, Any]", result.structured_content)


def failure(result: CallToolResult) -> tuple[str, str]:
    """Return the kind and message of a call that must fail."""
    assert result.meta is not None, result
    error = cast("dict[str, str]", result.meta[ERROR_KEY])
    return error["kind"], error["message"]


async def kind_of_lost_call(client: Client, handle: str) -> str:
    """Return the kind of the failure of a call to a lost session: of the proxy, or of another worker."""
    try:
        return failure(await client.call_tool("counter_add", {"session": handle}))[0]
    except MCPError as error:
        return str(cast("dict[str, str]", error.data)[KIND_KEY])


async def in_both(client: Client) -> list[str]:
    """Return the handles of two sessions in different workers; extra sessions are ended."""
    handle_of: dict[str | None, str] = {}
    while len(handle_of) < 2:
        handle = str(data(await client.call_tool("session_start", {}))["session"])
        if handle_of.setdefault(server_of(handle), handle) != handle:
            await client.call_tool("session_end", {"session": handle})
    return [handle_of["1"], handle_of["2"]]


async def end(client: Client, handles: list[str]) -> None:
    """End sessions, ignoring those that are gone."""
    for handle in handles:
        await client.call_tool("session_end", {"session": handle})


@pytest.mark.promise("mcp:workers:sessions")
@ERAS
async def test_a_session_lives_in_one_worker_and_is_reached_by_every_connection(
    crew: TwoWorkerServer, mode: str
) -> None:
    with anyio.fail_after(60):
        async with crew.client() as starter, crew.client(mode) as first, crew.client(mode) as second:
            handles = await in_both(starter)
            for handle in handles:
                assert data(await first.call_tool("counter_add", {"session": handle})) == {"count": 1}
                assert data(await second.call_tool("counter_add", {"session": handle})) == {"count": 2}
                fork = data(await first.call_tool("session_fork", {"session": handle}))["session"]
                assert server_of(fork) == server_of(handle)
                assert data(await second.call_tool("counter_add", {"session": fork})) == {"count": 3}
                assert data(await first.call_tool("counter_add", {"session": handle})) == {"count": 3}
                handles = [*handles, fork]
            await end(starter, handles)


@pytest.mark.promise("mcp:workers:all")
@ERAS
async def test_session_lists_and_resources_span_all_workers(crew: TwoWorkerServer, mode: str) -> None:
    with anyio.fail_after(60):
        async with crew.client() as starter, crew.client(mode) as client, crew.client(mode, "bob") as bob:
            handles = await in_both(starter)
            listed = data(await client.call_tool("session_list", {}))["sessions"]
            assert {entry["session"] for entry in listed} == {*handles}
            assert data(await bob.call_tool("session_list", {})) == {"sessions": []}
            for handle in handles:
                await client.call_tool("counter_story", {"session": handle})
                assert (
                    failure(await bob.call_tool("counter_add", {"session": handle}))[0] == "session_not_found"
                )
            resources = (await client.list_resources()).resources
            assert len(resources) == 4
            for entry in resources:
                assert len((await client.read_resource(entry.uri)).contents) == 1
                with pytest.raises(MCPError, match="not found"):
                    await bob.read_resource(entry.uri)
            assert (await bob.list_resources()).resources == []
            await end(starter, handles)


@pytest.mark.promise("mcp:large:linked")
@ERAS
async def test_a_large_image_of_any_worker_is_linked_and_read(crew: TwoWorkerServer, mode: str) -> None:
    async def ignore(progress: float, total: float | None, message: str | None) -> None:
        pass

    arguments = {"image_bytes": 3_000_000, "steps": 1}
    with anyio.fail_after(60):
        async with crew.client(mode) as client, crew.client(mode) as other, crew.client(mode, "bob") as bob:
            for _ in range(2):  # at least one of several calls without a session is served by each worker
                result = await client.call_tool("counter_large", arguments, progress_callback=ignore)
                (link,) = [block for block in result.content if isinstance(block, ResourceLink)]
                kept = (await other.read_resource(link.uri)).contents[0]
                assert isinstance(kept, BlobResourceContents)
                assert b64decode(kept.blob) == noise(3_000_000)
                with pytest.raises(MCPError, match="not found"):
                    await bob.read_resource(link.uri)


@pytest.mark.promise("mcp:workers:guard")
async def test_tokens_scopes_and_sizes_hold_for_every_worker(crew: TwoWorkerServer) -> None:
    echo = request("tools/call", {"name": "counter_echo", "arguments": {"text": "x" * 200_000}})
    with anyio.fail_after(60):
        async with crew.client("auto", "carol") as carol, httpx2.AsyncClient(timeout=30) as http:
            names = {tool.name for tool in (await carol.list_tools()).tools}
            assert "files_read" in names
            assert not any(name.startswith("counter") for name in names)
            for _ in range(2):
                assert failure(await carol.call_tool("counter_echo", {"text": "x"}))[0] == "denied"
            assert (await post(http, crew.url, echo, {})).status_code == 401
            bearer = {"Authorization": f"Bearer {TOKENS['alice']}"}
            for _ in range(2):
                assert (await post(http, crew.url, echo, bearer)).status_code == 413
            broken = await http.post(
                crew.url, content=b"{", headers={**bearer, "Mcp-Protocol-Version": "2026-07-28"}
            )
            assert broken.status_code == 400
            alone = crew.url.replace("/mcp", "/counter/mcp")
            assert (await post(http, alone, request("tools/list"), bearer)).status_code == 200


@pytest.mark.promise("mcp:http:bad_input")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    "content",
    [
        b'{"params":' * 9_000,
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"session":' + b"[" * 9_000,
    ],
    ids=["objects", "lists"],
)
async def test_a_deeply_nested_message_is_a_parse_error_in_any_worker(
    crew: TwoWorkerServer, content: bytes, era: str
) -> None:
    async with httpx2.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {TOKENS['alice']}"}) as http:
        message = request("tools/list")
        headers = headers_of(message) if era == "modern" else await opened(http, crew.url)
        headers["Content-Type"] = "application/json"
        response = await http.post(crew.url, content=content, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32700)


@pytest.mark.promise("mcp:workers:cancelled")
@ERAS
async def test_a_call_that_its_client_cancels_is_stopped_in_any_worker(
    crew: TwoWorkerServer, mode: str
) -> None:
    async def wait(client: Client, handle: str) -> None:
        await client.call_tool("counter_wait", {"session": handle})

    async def running(client: Client) -> list[int]:
        listed = data(await client.call_tool("session_list", {}))["sessions"]
        return [session["running"] for session in listed]

    with anyio.fail_after(60):
        async with crew.client() as starter, crew.client(mode) as client:
            handles = await in_both(starter)
            async with anyio.create_task_group() as group:
                for handle in handles:
                    group.start_soon(wait, client, handle)
                while await running(starter) != [1, 1]:
                    continue
                group.cancel_scope.cancel()
            while await running(starter) != [0, 0]:
                continue
            await end(starter, handles)


@pytest.mark.promise("mcp:workers:blocked")
@pytest.mark.parametrize("number", [1, 2])
async def test_a_backend_that_blocks_its_process_delays_only_that_worker(
    crew: TwoWorkerServer, number: int, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    frozen: list[CallToolResult] = []

    async def freeze(client: Client, handle: str) -> None:
        arguments = {"session": handle, "path": str(pipe)}
        frozen.append(await client.call_tool("blocker_freeze", arguments))

    with anyio.fail_after(60):
        async with crew.client() as client, crew.client() as other, httpx2.AsyncClient(timeout=30) as http:
            handles = await in_both(client)
            async with anyio.create_task_group() as group:
                group.start_soon(freeze, client, handles[number - 1])
                # The pipe can be opened for writing once it is open for reading: then the worker is blocked.
                write = await anyio.to_thread.run_sync(os.open, pipe, os.O_WRONLY)
                for count in range(1, 20):
                    added = await other.call_tool("counter_add", {"session": handles[2 - number]})
                    assert data(added) == {"count": count}
                    assert data(await other.call_tool("counter_echo", {"text": "x"})) == {"text": "x"}
                assert (await http.get(crew.url.replace("/mcp", "/health"))).status_code == 200
                assert frozen == []
                os.close(write)
            assert not frozen[0].is_error
            assert data(await client.call_tool("counter_add", {"session": handles[number - 1]})) == {
                "count": 1
            }
            await end(client, handles)


@pytest.mark.promise("mcp:workers:death")
@pytest.mark.parametrize("number", [1, 2])
async def test_a_worker_that_dies_is_restarted_and_its_sessions_are_reported_as_gone(
    crew: TwoWorkerServer, number: int
) -> None:
    errors: list[MCPError] = []

    async def wait(client: Client, handle: str) -> None:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("counter_wait", {"session": handle})
        errors.append(caught.value)

    with anyio.fail_after(90):
        async with crew.client() as client, crew.client("legacy") as legacy:
            await client.list_tools()
            handles = await in_both(client)
            mine, other = handles[number - 1], handles[2 - number]
            async with anyio.create_task_group() as group:
                group.start_soon(wait, client, mine)
                while not any(session["running"] for session in await _listed(client)):
                    continue
                crew.kill(number)
            assert errors[0].data == {KIND_KEY: "session_not_found"}
            assert mine in errors[0].message
            assert "its server process has ended" in errors[0].message
            assert "\n" not in errors[0].message
            assert data(await client.call_tool("counter_add", {"session": other})) == {"count": 1}
            assert await kind_of_lost_call(client, mine) == "session_not_found"
            # The handshake-era connection may have been in the dead worker: the client must open a new one.
            with suppress(MCPError):
                assert data(await legacy.call_tool("counter_echo", {"text": "x"})) == {"text": "x"}
            await end(client, await in_both(client))
            assert await kind_of_lost_call(client, mine) == "session_not_found"
            await end(client, [other])


@pytest.mark.promise("mcp:workers:death")
async def test_calls_on_a_connection_of_a_lost_worker_are_unavailable_and_say_what_is_lost_when_repeated(
    crew: TwoWorkerServer,
) -> None:
    answers: dict[int, httpx2.Response] = {}
    bearer = {"Authorization": f"Bearer {TOKENS['alice']}"}
    with anyio.fail_after(90):
        async with crew.client() as client, httpx2.AsyncClient(timeout=60, headers=bearer) as http:
            handles = await in_both(client)
            headers = await opened(http, crew.url)
            while not headers["Mcp-Session-Id"].endswith("-1"):
                # Requests on one connection go to the same worker while both are equally busy.
                async with httpx2.AsyncClient(timeout=60, headers=bearer) as other:
                    headers = await opened(other, crew.url)

            async def wait(worker: int) -> None:
                call = {"name": "counter_wait", "arguments": {"session": handles[worker - 1]}}
                message = {**request("tools/call", call, LEGACY), "id": worker}
                answers[worker] = await http.post(crew.url, json=message, headers=headers)

            async with anyio.create_task_group() as group:
                group.start_soon(wait, 1)
                group.start_soon(wait, 2)
                while [session["running"] for session in await _listed(client)] != [1, 1]:
                    continue
                crew.kill(1)
            kinds = {
                answer.status_code: answer.json()["error"]["data"][KIND_KEY] for answer in answers.values()
            }
            assert kinds == {502: "unavailable"}
            again = answers[1]
            while again.status_code == 502:
                # The dying process still accepts connections for a moment.
                again = await http.post(crew.url, json=request("tools/list", None, LEGACY), headers=headers)
            assert again.status_code == 404, "the client must open a new connection"
            await client.list_tools()
            assert await kind_of_lost_call(client, handles[0]) == "session_not_found"
            assert data(await client.call_tool("counter_add", {"session": handles[1]})) == {"count": 1}
            await end(client, await in_both(client))
            await end(client, handles)


async def _listed(client: Client) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", data(await client.call_tool("session_list", {}))["sessions"])


@pytest.mark.promise("mcp:workers:metrics")
async def test_metrics_cover_every_worker(crew: TwoWorkerServer) -> None:
    with anyio.fail_after(60):
        async with httpx2.AsyncClient(timeout=30) as http, crew.client() as client:
            handles = await in_both(client)
            for handle in handles:
                await client.call_tool("counter_add", {"session": handle})
            await end(client, handles)
            at = crew.url.removesuffix("/mcp")
            assert (await http.get(f"{at}/ready")).json() == {"ready": True}
            assert (await http.get(f"{at}/metrics")).status_code == 401
            bearer = {"Authorization": f"Bearer {TOKENS['alice']}"}
            text = (await http.get(f"{at}/metrics", headers=bearer)).text
    for worker in (1, 2):
        assert f'agentflow_sessions{{worker="{worker}"}} 0' in text
        assert f'agentflow_calls_total{{worker="{worker}",tool="counter_add",outcome="ok"}}' in text
    assert 'agentflow_workers{worker="front"} 2' in text
    assert text.count("# TYPE agentflow_calls_total counter") == 1


@pytest.mark.promise("mcp:workers:metrics")
def test_samples_of_several_processes_are_grouped_by_family() -> None:
    first, second = Metrics(clock=lambda: 0.0), Metrics(clock=lambda: 0.0)
    first.refused(401)
    text = together({"1": first.render({"a": ("An a.", 1)}), "2": second.render({"a": ("An a.", 2)})})
    lines = text.splitlines()
    assert 'agentflow_refused_requests_total{worker="1",status="401"} 1' in lines
    index = lines.index("# HELP a An a.")
    assert lines[index:] == ["# HELP a An a.", "# TYPE a gauge", 'a{worker="1"} 1', 'a{worker="2"} 2']


@pytest.mark.promise("mcp:workers:sessions")
@pytest.mark.parametrize("name", ["2", "a", "host7", "a-12"])
def test_a_handle_names_its_server_and_nothing_else_does(name: str) -> None:
    handle = handles_of(name)()
    assert server_of(handle) == name
    assert split_connection("0" * 32 + "-" + name) == ("0" * 32, name)
    bare = handle.removesuffix(f"-{name}")
    for other in (
        bare,
        f"{bare}-",
        f"{bare}-A",
        f"{bare}-a-b",
        f"{bare}-{name}x-",
        f"x{handle}",
        "",
        None,
        7,
        [handle],
    ):
        assert server_of(other) is None


@pytest.mark.promise("mcp:workers:archive")
async def test_the_files_of_an_ended_session_can_be_reused_in_another_worker(tmp_path: Path) -> None:
    words = (f"sessions.archive.folder={tmp_path}", "runtime={name: process, idle: false}", "--workers", "2")
    with anyio.fail_after(100):
        async with program(
            "bash", *words, "--http", "127.0.0.1:0", environment={"AGENTFLOW_SERVER_TOKEN": "t"}
        ) as running:
            url = await address(running)
            children = psutil.Process(running.process.pid).children(recursive=True)
            async with connected(url, "t") as client:
                first, second = await in_both(client)
                write = {"session": first, "command": "echo kept > note"}
                await client.call_tool("bash_run", write)
                await end(client, [first, second])
                workers: set[str | None] = set()
                while workers != {"1", "2"}:
                    began = data(await client.call_tool("session_start", {"files_of": first}))["session"]
                    seen = data(await client.call_tool("bash_run", {"session": began, "command": "cat note"}))
                    assert seen["stdout"] == "kept\n"
                    workers.add(server_of(began))
            running.process.terminate()
            assert await running.process.wait() == 0
            _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(children, timeout=60))
            assert alive == []
