"""Two servers behind HAProxy with the shipped configuration."""

import os
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2
from mcp import Client

from tests.mcp_servers._program import ROOT, Program, program
from tests.mcp_servers._serving import connected
from tests.mcp_servers.serving.test_command import address

TOKEN = "token-of-both"


@dataclass(frozen=True)
class Balanced:
    """Two servers and their balancer."""

    url: str
    """URL of the balancer."""
    servers: dict[str, str]
    """URL of each server by name."""
    running: dict[str, Program]
    """Process of each server by name."""

    def client(self, mode: str) -> AbstractAsyncContextManager[Client]:
        """A connected client of the balancer."""
        return connected(self.url, TOKEN, mode)

    async def calls(self, name: str, tool: str) -> int:
        """Return how many calls of a tool a server has answered."""
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
            text = (await http.get(self.servers[name].replace("/mcp", "/metrics"))).text
        counts = re.findall(rf'^agentflow_calls_total{{tool="{tool}".*}} (\d+)$', text, re.MULTILINE)
        return sum(map(int, counts))


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@asynccontextmanager
async def balanced(*backends: str) -> AsyncGenerator[Balanced]:
    """Start two servers of these backends and HAProxy."""
    balancer, a, b = free_ports(3)
    ports = {"a": a, "b": b}
    async with AsyncExitStack() as stack:
        running: dict[str, Program] = {}
        for name, port in ports.items():
            peers = ", ".join(
                f"{other}: 'http://127.0.0.1:{p}'" for other, p in ports.items() if other != name
            )
            words = [
                f"name={name}",
                f"peers={{{peers}}}",
                f"allowed_hosts=[localhost, '127.0.0.1:{balancer}']",
            ]
            running[name] = await stack.enter_async_context(
                program(
                    *backends,
                    *("--http", f"127.0.0.1:{port}", *words),
                    environment={"AGENTFLOW_SERVER_TOKEN": TOKEN},
                )
            )
        servers = {name: await address(server) for name, server in running.items()}
        environment = {
            **os.environ,
            "AGENTFLOW_BIND": f"127.0.0.1:{balancer}",
            **{f"AGENTFLOW_{name.upper()}": f"127.0.0.1:{port}" for name, port in ports.items()},
        }
        haproxy = ["haproxy", "-db", "-q", "-f", str(ROOT / "configs" / "haproxy" / "agentflow.cfg")]
        process = await stack.enter_async_context(
            await anyio.open_process(haproxy, env=environment, stdout=None, stderr=None)
        )
        stack.callback(process.kill)
        url = f"http://127.0.0.1:{balancer}/mcp"
        async with httpx2.AsyncClient() as http:
            while True:
                try:
                    if (await http.get(url.replace("/mcp", "/ready"))).status_code == 200:
                        break
                except httpx2.TransportError:
                    await anyio.lowlevel.checkpoint()
        yield Balanced(url, servers, running)
