"""Overhead of mounting an external server: the rag server, called through a sandbox and by the SDK's client.

Both sides use the same kind of process and pipes; the figures are CPU time of this process, alternating, medians of rounds.
"""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from agentflow.sandbox import Sandbox, SandboxSettings
from benchmarks._rows import Row

COMMAND = ["-m", "mcp_servers", "rag"]
CALLS = 30
ROUNDS = 7


async def measure() -> list[Row]:
    """The figures."""
    servers = {"corpus": {"command": [sys.executable, *COMMAND]}}
    alone = stdio_client(StdioServerParameters(command=sys.executable, args=COMMAND))
    begin = time.perf_counter()
    async with Sandbox(SandboxSettings(backends={"mcp": {"servers": servers}})) as sandbox:
        mounted = (time.perf_counter() - begin) * 1000
        begin = time.perf_counter()
        async with Client(alone) as client:
            await client.list_tools()
            started = (time.perf_counter() - begin) * 1000

            async def ours() -> None:
                for _ in range(CALLS):
                    assert (await sandbox.execute("mcp:corpus.rag_stats")).ok

            async def theirs() -> None:
                for _ in range(CALLS):
                    assert not (await client.call_tool("rag_stats", {})).is_error

            pairs = [(await spent(ours), await spent(theirs)) for _ in range(ROUNDS)]
    mine, others = (statistics.median(side) / CALLS for side in zip(*pairs, strict=True))
    return [
        Row("mcp_mounted_ms", mounted, started, "the SDK's client"),
        Row("mcp_call_cpu_ms", mine, others, "the SDK's client", floor=2.0, added=True),
    ]


async def spent(work: Callable[[], Awaitable[None]]) -> float:
    """Milliseconds of CPU time."""
    begin = time.process_time()
    await work()
    return (time.process_time() - begin) * 1000
