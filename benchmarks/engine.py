"""The engine of a laptop: our vLLM server beside vLLM's own, and an update of its weights beside a restart.

Run `python benchmarks/engine.py [--check]`; it needs `make .venv-vllm/.stamp`. Both serve SmolLM2 in float32, one after the other, and answer
the same requests: 64 tokens of a prompt that no other request shares, and 64 sampled ones. vLLM's own server has its defaults. Prints a table,
and as the last line one JSON object; with `--check` it exits with 1 if a limit is missed.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio

from agentflow.serving import (
    KNOWN_MODELS,
    ModelServer,
    ServingSettings,
    Weights,
    fetch_model,
)

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
AT_ONCE = (1, 8, 32)
PROMPT, SAMPLED = 64, 64
UPDATES = 3
MAX_UPDATE_SECONDS, MAX_START_SECONDS = 1.5, 60.0


async def tokens_per_second(url: str, key: str, model: str, at_once: int, seed: int) -> float:
    """Return the sampled tokens per second of requests at once."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def ask(number: int) -> None:
            body = {
                "model": model,
                "prompt": [
                    (seed * 9973 + number * 101 + place * 7) % 40_000 + 100 for place in range(PROMPT)
                ],
                "max_tokens": SAMPLED,
                "ignore_eos": True,
                "temperature": 1.0,
            }
            async with session.post(f"{url}/completions", json=body) as answer:
                answer.raise_for_status()
                await answer.read()

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(at_once):
                tasks.start_soon(ask, number)
        return at_once * SAMPLED / (time.perf_counter() - began)


async def rates(url: str, key: str, model: str) -> dict[int, float]:
    """Return the tokens per second for each number of requests at once; the better of two rounds after a first one."""
    await tokens_per_second(url, key, model, 8, 0)
    return {
        at_once: max([await tokens_per_second(url, key, model, at_once, seed) for seed in (1, 2)])
        for at_once in AT_ONCE
    }


@asynccontextmanager
async def plain_server(model: Path, log: Path) -> AsyncGenerator[str]:
    """Run vLLM's own server with its defaults; yield its URL when it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--dtype",
        "float32",
    ]
    command += ["--served-model-name", "policy", "--port", str(port), "--max-model-len", "2048"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as output:
        process = await anyio.open_process(
            command, env=environment, stdin=None, stdout=output, stderr=subprocess.STDOUT
        )
    async with process, aiohttp.ClientSession() as session:
        try:
            while process.returncode is None:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/health"):
                        break
                except aiohttp.ClientConnectionError:
                    await anyio.sleep(0.2)
            if process.returncode is not None:
                sys.exit(f"vLLM's own server ended:\n{(await anyio.Path(log).read_text())[-2000:]}")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()


async def measure(model: Path, scratch: Path) -> dict[str, float]:
    """Return all figures."""
    figures: dict[str, float] = {}
    began = time.perf_counter()
    async with plain_server(model, scratch / "plain.log") as url:
        figures["vllm_start_seconds"] = time.perf_counter() - began
        theirs = await rates(url, "", "policy")
    settings = ServingSettings(
        model=str(model), name="policy", python=PYTHON, dtype="float32", max_model_len=2048, trains=True
    )
    began = time.perf_counter()
    async with ModelServer(settings) as server:
        figures["start_seconds"] = time.perf_counter() - began
        ours = await rates(server.url, server.key, server.model)
        seconds: list[float] = []
        for number in range(UPDATES):
            began = time.perf_counter()
            await server.publish(Weights(folder=model, version=str(number)))
            seconds.append(time.perf_counter() - began)
        figures["update_seconds"] = max(seconds)
        began = time.perf_counter()
        await server.restart()
        figures["restart_seconds"] = time.perf_counter() - began
    for at_once in AT_ONCE:
        figures |= {f"tokens_per_second_{at_once}": ours[at_once], f"vllm_{at_once}": theirs[at_once]}
        print(
            f"{at_once:>3} requests: {ours[at_once]:6.1f} tokens/s, vLLM's own server {theirs[at_once]:6.1f}: "
            f"{ours[at_once] / theirs[at_once]:.2f} x"
        )
    print(
        f"start: {figures['start_seconds']:.1f} s, vLLM's own server {figures['vllm_start_seconds']:.1f} s (limit {MAX_START_SECONDS:.0f})"
    )
    print(
        f"update, every tensor compared: {figures['update_seconds']:.2f} s at most of {UPDATES} (limit {MAX_UPDATE_SECONDS}), "
        f"a restart {figures['restart_seconds']:.1f} s: {figures['restart_seconds'] / figures['update_seconds']:.0f} x"
    )
    return figures


def main() -> int:
    """Measure both servers."""
    parser = argparse.ArgumentParser(prog="benchmarks/engine.py")
    parser.add_argument("--model", default="smollm2", help="a known model, or a folder")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    given = parser.parse_args()
    model = fetch_model(given.model) if given.model in KNOWN_MODELS else Path(given.model)
    with tempfile.TemporaryDirectory() as scratch:
        figures = anyio.run(measure, model, Path(scratch))
    print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))
    missed = (
        figures["update_seconds"] > MAX_UPDATE_SECONDS
        or figures["start_seconds"] > MAX_START_SECONDS
        or any(figures[f"tokens_per_second_{at_once}"] < figures[f"vllm_{at_once}"] for at_once in AT_ONCE)
    )
    return int(missed and given.check)


if __name__ == "__main__":
    sys.exit(main())
