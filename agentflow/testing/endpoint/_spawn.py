"""Fake endpoint in a process of its own, for the length of a block."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream

_ROOT = str(Path(__file__).resolve().parents[3])


@asynccontextmanager
async def fake_endpoint(
    *,
    delay_ms: float = 0.0,
    jitter_ms: float = 0.0,
    faults: float = 0.0,
    fault_seed: int = 1,
    down_after: int | None = None,
    hold_after: int | None = None,
    same: bool = False,
    structured: str = "json_schema",
    tool_turns: int = 3,
    port: int = 0,
    log: Path | None = None,
) -> AsyncGenerator[str]:
    """Start a fake endpoint and yield its address, `http://127.0.0.1:PORT/v1`. See docs/models.md.

    :param delay_ms: delay of each answer, plus at most `jitter_ms`.
    :param faults: share of calls that fail, selected by `fault_seed`.
    :param down_after: number of calls after which none is answered.
    :param hold_after: number of calls after which later ones wait for a request to `/release`.
    :param same: let the planner propose the same action in every plan.
    :param structured: strictest `response_format` to accept.
    :param tool_turns: number of tool calls before an answer, if tools are offered.
    :param port: port; 0 for any free one.
    :param log: file that gets the body of every request, one per line.
    """
    options = {"port": port, "delay-ms": delay_ms, "jitter-ms": jitter_ms, "structured": structured}
    options |= {"faults": faults, "fault-seed": fault_seed, "tool-turns": tool_turns}
    options |= {"down-after": down_after, "hold-after": hold_after, "log": log}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "agentflow.testing.endpoint", *words, *(["--same"] if same else [])]
    paths = os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": paths}
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        try:
            yield await _first_line(process)
        finally:
            if process.returncode is None:
                process.terminate()
                with anyio.CancelScope(shield=True):
                    await process.wait()


async def _first_line(process: anyio.abc.Process) -> str:
    assert process.stdout is not None
    line = ""
    async for piece in TextReceiveStream(process.stdout):
        line += piece
        if "\n" in line:
            return line.partition("\n")[0]
    raise RuntimeError("the fake endpoint ended before it was ready")
