"""Hangs: tools, servers, endpoints and environments that never answer, with shortened limits."""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Final
from unittest.mock import patch

import aiohttp
import anyio
import anyio.to_thread
from aiohttp import web
from anyio.abc import SocketStream
from pydantic import Field, SecretStr

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import AgentFlowError, ErrorKind, ToolFailure, unwrap_group
from agentflow.readers import _openenv
from agentflow.readers._openenv import OpenEnvClient
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.sandbox import Backend, Sandbox, SandboxSettings, _remote, tool
from agentflow.sandbox._api_tools import register_api_tool, registered_tools
from mcp_servers import Session, ToolTable
from mcp_servers.core import TableLimits
from runtimes import InstanceSpec, Limits
from runtimes.process import ProcessRuntime
from tests._hostile import hostile
from tests.agentflow.models._serving import call, painter
from tests.agentflow.sandbox._cable import cable_to
from tests.agentflow.sandbox._hosts import TOKEN, serving
from tests.attacks._table import Attack, attacks

CATEGORY: Final = "hangs"
SHORT: Final = 0.1
SECONDS: Final = 30
_LIMITS: Final = Limits(wall_seconds=SHORT)

Hang = Callable[[], Awaitable[object]]


class NeverBackend(Backend):
    """Tools that never answer."""

    name = "never"
    description = "Never answers."

    @tool(read_only=True)
    async def alone(self) -> str:
        """Wait without a session. Use it to wait."""
        await anyio.sleep_forever()
        return ""

    @tool(read_only=True)
    async def inside(self, session: Session) -> str:
        """Wait in a session. Use it to wait."""
        await anyio.sleep_forever()
        return ""

    @tool(read_only=True)
    async def limited(self, timeout: Annotated[float, Field(description="Seconds.")]) -> str:
        """Wait longer than asked. Use it to wait."""
        await anyio.sleep_forever()
        return ""


@asynccontextmanager
async def silent() -> AsyncGenerator[str]:
    """Listen for connections and answer none."""

    async def receive(stream: SocketStream) -> None:
        async with stream:
            async for _ in stream:
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, receive)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


async def _tool(name: str, **arguments: object) -> object:
    limits = TableLimits(hang_seconds=SHORT)
    async with ToolTable([NeverBackend()], limits=limits, spec=InstanceSpec(limits=_LIMITS)) as table:
        if name == "never_inside":
            arguments["session"] = (await table.call("session_start")).data["session"]
        return await table.call(name, arguments)


async def _function() -> object:
    held = threading.Event()
    with patch.dict(registered_tools, clear=True):

        @register_api_tool("never:function")
        def wait() -> str:
            """Wait in a thread. Use it to wait."""
            held.wait(SECONDS)
            return ""

        settings = SandboxSettings(backends=[], limits=_LIMITS, hang_seconds=SHORT)
        try:
            async with Sandbox(settings) as sandbox:
                return await sandbox.execute("never:function")
        finally:
            held.set()


async def _program() -> object:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        instance = await runtime.start(InstanceSpec(limits=_LIMITS))
        result = await instance.exec(["sleep", "600"])
        raise ToolFailure(
            ErrorKind.TIMEOUT if result.outcome == "timeout" else ErrorKind.FAILED, result.outcome
        )


async def _server(request: bytes) -> object:
    settings = {"hang_seconds": SHORT, "limits": _LIMITS, "token": SecretStr(TOKEN)}
    async with serving(NeverBackend()) as server, cable_to(server.url) as cable:
        cable.cut_before, cable.stalls = request, True
        async with Sandbox(SandboxSettings.model_validate({"server_url": cable.url, **settings})) as sandbox:
            if request == b"resources/read":
                return await sandbox.read("agentflow://never")
            return await sandbox.execute("never:alone")


async def _connecting() -> object:
    async with silent() as url, Sandbox(SandboxSettings(server_url=url, token=SecretStr(TOKEN))) as sandbox:
        return sandbox


async def _silent_endpoint() -> object:
    async with silent() as url, painter(url, clock=SYSTEM_CLOCK, call_seconds=SHORT) as model:
        return await model.complete(call())


async def _dripping_endpoint() -> object:
    async with hostile("drip") as url, painter(url, clock=SYSTEM_CLOCK, call_seconds=SHORT) as model:
        return await model.complete(call())


async def _connecting_environment() -> object:
    async with silent() as url, OpenEnvClient(url) as environment:
        return environment


async def _step_of_an_environment() -> object:
    async def open_socket(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        async for _ in response:
            pass
        return response

    application = web.Application()
    application.router.add_get("/ws", open_socket)
    runner = web.AppRunner(application, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with OpenEnvClient(url, seconds=SHORT) as environment:
            return await environment.step({})
    finally:
        await runner.cleanup()


async def _tasks_of_an_environment() -> object:
    async with silent() as url:
        source = ParsedSource("openenv", url, {})
        return await anyio.to_thread.run_sync(
            lambda: list(_openenv.read_openenv(source, ReaderSettings(source=f"openenv:{url}")))
        )


_HANGS: dict[str, tuple[str, Hang]] = {
    "tool: without a session": ("never answer a call", lambda: _tool("never_alone")),
    "tool: in a session": ("never answer a call of a session", lambda: _tool("never_inside")),
    "tool: its own timeout": ("ignore the timeout of the call", lambda: _tool("never_limited", timeout=SHORT)),
    "tool: function": ("block a thread", _function),
    "program": ("never end", _program),
    "server: call": ("take a call and never answer", lambda: _server(b"tools/call")),
    "server: resource": ("never send a resource", lambda: _server(b"resources/read")),
    "server: connection": ("take a connection and never answer", _connecting),
    "endpoint: silent": ("take a request and never answer", _silent_endpoint),
    "endpoint: dripping": ("begin an answer and never end it", _dripping_endpoint),
    "environment: connection": ("take a connection and never answer", _connecting_environment),
    "environment: step": ("never answer a step", _step_of_an_environment),
    "environment: tasks": ("never list the tasks", _tasks_of_an_environment),
}  # fmt: skip

ATTACKS: Final[list[Attack]] = attacks(
    CATEGORY, {name: (aim, name, "ended by its limit") for name, (aim, _) in _HANGS.items()}
)


async def _outcome(hang: Hang) -> str:
    try:
        with anyio.fail_after(SECONDS):
            result = await hang()
    except TimeoutError:
        return "hung"
    except Exception as raised:  # boundary: task groups of the servers wrap the failure
        error = unwrap_group(raised)
        words = f"{getattr(error, 'kind', '')} {error}" if isinstance(error, AgentFlowError) else repr(error)
    else:
        words = str(getattr(result, "error", result))
    return "ended by its limit" if "time" in words.lower() or "no answer" in words else words[:300]


async def observe(table: Iterable[Attack]) -> dict[str, str]:
    """Wait for all at once; return the outcomes by id."""
    short = aiohttp.ClientTimeout(total=SHORT)
    with (
        patch.object(_remote, "GRACE_SECONDS", SHORT),
        patch.object(_remote, "CONNECT_SECONDS", 1.0),
        patch.object(_openenv, "_SECONDS", SHORT),
        patch.object(_openenv, "_TIMEOUT", short),
    ):
        seen: dict[str, str] = {}

        async def wait(attack: Attack) -> None:
            seen[attack.id] = await _outcome(_HANGS[attack.code][1])

        async with anyio.create_task_group() as group:
            for attack in table:
                group.start_soon(wait, attack)
        return seen
