"""The server as a child process with connected pipes."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parents[2]
COUNTER = "tests.mcp_servers._counter:Counter"


class Program:
    """A running server."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdin = process.stdin
        self.stdout = BufferedByteReceiveStream(process.stdout)
        self.stderr = BufferedByteReceiveStream(process.stderr)

    async def send(self, message: Mapping[str, object] | bytes) -> None:
        """Send one line."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self.stdin.send(line + b"\n")

    async def answer(self) -> dict[str, object]:
        """Read the next line, which must be a message."""
        line = await self.stdout.receive_until(b"\n", 10_000_000)
        return cast("dict[str, object]", json.loads(line))

    async def next_line(self) -> str:
        """Read the next line of standard error."""
        return (await self.stderr.receive_until(b"\n", 100_000)).decode()

    async def rest(self) -> str:
        """Read the rest of its output until it ends."""
        chunks: list[bytes] = []
        while True:
            try:
                chunks.append(await self.stderr.receive())
            except anyio.EndOfStream:
                return b"".join(chunks).decode()


@asynccontextmanager
async def program(
    *arguments: str, environment: Mapping[str, str] | None = None, command: Sequence[str] | None = None
) -> AsyncGenerator[Program]:
    """Run `python -m mcp_servers` with these arguments; kill it on exit if it still runs."""
    words = command or (sys.executable, "-m", "mcp_servers")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTFLOW_")}
    process = await anyio.open_process(
        [*words, *arguments], cwd=ROOT, env={**inherited, **(environment or {})}
    )
    async with process:
        try:
            yield Program(process)
        finally:
            if process.returncode is None:
                process.kill()
