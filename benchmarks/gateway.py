"""Model calls through the gateway, compared with the bare endpoint and with agent-lightning.

Run `python benchmarks/gateway.py [--check]`: prints a table measured in this run, and as the last line one JSON object. With
`--check` it exits with 1 if a limit is missed.

The upstream is a process of its own that answers after 50 ms with 2,000 read and 200 sampled tokens. At one call in flight the
sides alternate call by call; at 200 in flight they alternate in rounds. CPU is that of the gateway's process. The exact path is
also compared with the chat API of a real vLLM on a core of its own. agent-lightning is installed into `.venv-agentlightning`;
without Python 3.12 or a registry it is left out, with a line that says so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import runpy
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentflow.gateway import EpisodeOffer, EpisodeOutcome, Gateway, GatewayClient, GatewaySettings
from agentflow.serving import ModelServer, ServingSettings
from agentflow.testing import TINY_MODEL
from agentflow.trace import Task
from benchmarks._gateway_upstream import ANSWER, MODEL, PROMPT_TOKENS

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
CALLS_ALONE = 100
"""Calls of each side at one in flight."""
IN_FLIGHT = 200
CALLS = 600
"""Calls of each side and round at 200 in flight."""
ROUNDS = 3
CROWD_ON_VLLM = 16
TURNS = 80
OPENING = ("Every keeper of the lighthouse counts the ships that pass. " * 40)[: PROMPT_TOKENS - 40]
TINY = "tiny"
LIGHTNING = "agentlightning==1.0.2"


Body = Callable[[int], bytes]
"""Makes the request of a call from its number."""


def body_of(number: int) -> bytes:
    """Return a request with a conversation of its own."""
    messages = [{"role": "user", "content": f"{number:08d} {OPENING}"}]
    return msgspec.json.encode({"model": MODEL, "messages": messages})


class Endpoint(NamedTuple):
    """One side of the comparison."""

    name: str
    """Name."""
    url: str
    """Address, up to the path of the chat API."""
    keys: Sequence[str]
    """API keys: one for each caller."""
    processes: tuple[int, ...] = ()
    """Ids of its processes; empty: their CPU is not measured."""
    body: Body = body_of
    """Makes its requests."""


class Limit(NamedTuple):
    """A measured figure and its limit."""

    name: str
    """Name with unit."""
    value: float
    """Figure."""
    most: float
    """Largest accepted figure."""


def processes() -> set[int]:
    """Return the ids of all processes that this one has started, and of those that they have started."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        for file in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                new = {int(word) for word in file.read_text().split()} - found
                found |= new
                todo += new
    return found


def cpu_seconds(ids: Sequence[int]) -> float:
    """Return the CPU time that these processes have used."""
    ticks = 0
    for id in ids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{id}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def upstream() -> AsyncGenerator[str]:
    """Start the upstream and yield its address."""
    command = [sys.executable, str(ROOT / "benchmarks" / "_gateway_upstream.py")]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.receive())}"
        await process.stdin.aclose()
        await process.wait()


@asynccontextmanager
async def ours(url: str, tokens: str, model: str = MODEL, key: str = "") -> AsyncGenerator[Endpoint]:
    """Start a gateway with an episode for each caller.

    :param url: address of the upstream, up to `/v1`.
    :param tokens: way to get tokens: `exact` or `recorded`.
    """
    before = processes()
    with tempfile.TemporaryDirectory() as folder:
        settings = GatewaySettings.model_validate(
            {
                "folder": folder,
                "upstream": {"base_url": url, "model": model, "tokens": tokens, "api_key": key},
                "limits": {"calls": 100_000, "tokens": 100_000_000},
            }
        )
        async with Gateway(settings) as gateway, GatewayClient(gateway.url, gateway.token) as client:
            tasks = [Task(index=number, id=str(number), question="q") for number in range(IN_FLIGHT)]
            await client.offer([EpisodeOffer(id=f"{task.id}/0", group=task.id, task=task) for task in tasks])
            begun = [await client.begin() for _ in tasks]
            keys = [one.keys[""] for one in begun if one is not None]
            assert len(keys) == IN_FLIGHT
            own = tuple(processes() - before)
            yield Endpoint(f"gateway, {tokens}", f"{gateway.url}/v1", keys, own)
            for one in begun:
                if one is not None:
                    await client.end(one, EpisodeOutcome(reward=1.0))


@asynccontextmanager
async def lightning(url: str) -> AsyncGenerator[Endpoint | None]:
    """Start agent-lightning in its own environment; yield `None` if it can't be installed."""
    python = await anyio.to_thread.run_sync(_lightning_python)
    if python is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "agentlightning.server", "host=127.0.0.1", f"port={port}", "key=benchmark"]
    command += [f"default_proxy.model_name={MODEL}", "hydra.run.dir=.", "hydra.output_subdir=null"]
    with tempfile.TemporaryDirectory() as folder:
        async with await anyio.open_process(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            base = f"http://127.0.0.1:{port}"
            headers = {"Authorization": "Bearer benchmark"}
            async with aiohttp.ClientSession(headers=headers) as session:
                await _until_up(session, f"{base}/healthz")
                await _post(session, f"{base}/api/models", [{"model": MODEL, "endpoint": f"{url}/v1"}])
                await _post(session, f"{base}/api/rollouts", [{"input": "", "rollout_id": "r"}])
            path = "proxy/rollout/r/attempt/1/mode/train/openai/v1"
            try:
                yield Endpoint("agent-lightning", f"{base}/{path}", ["benchmark"], (process.pid,))
            finally:
                process.terminate()


def _lightning_python() -> str | None:
    """Return the Python of an environment with agent-lightning, which is made if needed."""
    folder = ROOT / ".venv-agentlightning"
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        print("agent-lightning is left out: uv is missing")
        return None
    # pyenv's shims are not found by uv.
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    interpreter = next((str(path) for path in versions.glob("3.12*/bin/python3.12")), "3.12")
    steps = [
        [
            uv,
            "venv",
            "--quiet",
            "--allow-existing",
            "--no-python-downloads",
            "--python",
            interpreter,
            str(folder),
        ],
        [uv, "pip", "install", "--quiet", "--python", str(python), LIGHTNING],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if line.strip()), "no reason given")
            print(f"agent-lightning is left out: {why}")
            return None
    return str(python)


async def _until_up(session: aiohttp.ClientSession, url: str) -> None:
    with anyio.fail_after(60):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            await anyio.sleep(0.1)


async def _post(session: aiohttp.ClientSession, url: str, body: object) -> None:
    async with session.post(url, json=body) as answer:
        assert answer.status == 201, await answer.text()


async def call(session: aiohttp.ClientSession, side: Endpoint, caller: int, body: bytes) -> float:
    """Make one call and return its milliseconds."""
    key = side.keys[caller % len(side.keys)]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    begin = time.perf_counter()
    async with session.post(f"{side.url}/chat/completions", data=body, headers=headers) as answer:
        content = await answer.read()
    took = 1000 * (time.perf_counter() - begin)
    assert answer.status == 200, f"{side.name}: {answer.status} {content[:300]!r}"
    return took


async def alone(
    session: aiohttp.ClientSession, sides: Sequence[Endpoint], calls: int
) -> dict[str, list[float]]:
    """Return the milliseconds of calls one after the other; the sides alternate."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(-5, calls):
        for side in sides:
            took = await call(session, side, number, side.body(number + 10))
            if number >= 0:
                times[side.name].append(took)
    return times


class Rounds:
    """Figures of a side at 200 in flight."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """Milliseconds of each call."""
        self.rates: list[float] = []
        """Calls per second of each round."""
        self.cpu: list[float] = []
        """CPU milliseconds of a call in each round."""


async def crowd(
    session: aiohttp.ClientSession,
    side: Endpoint,
    calls: int,
    rounds: Rounds,
    *,
    in_flight: int = IN_FLIGHT,
) -> None:
    """Make calls with so many in flight."""
    numbers = iter(range(calls))

    async def caller(place: int) -> None:
        for number in numbers:
            rounds.times.append(await call(session, side, place, side.body(1_000_000 + number)))

    used, begin = cpu_seconds(side.processes), time.perf_counter()
    async with anyio.create_task_group() as group:
        for place in range(in_flight):
            group.start_soon(caller, place)
    rounds.rates.append(calls / (time.perf_counter() - begin))
    rounds.cpu.append(1000 * (cpu_seconds(side.processes) - used) / calls)


async def conversation(
    session: aiohttp.ClientSession, side: Endpoint, caller: int, turns: int
) -> list[float]:
    """Return the milliseconds of each turn of a growing conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"turns {caller} {OPENING}"}]
    times: list[float] = []
    for turn in range(turns):
        times.append(
            await call(session, side, caller, msgspec.json.encode({"model": MODEL, "messages": messages}))
        )
        messages.append({"role": "assistant", "content": ANSWER})
        messages.append({"role": "user", "content": f"Turn {turn}: {ANSWER[:100]}"})
    return times


def p(times: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


@asynccontextmanager
async def served() -> AsyncGenerator[ModelServer | None]:
    """Serve a tiny model with vLLM on the CPU; yield `None` without its environment."""
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        print("vLLM is left out: .venv-vllm is missing; run: make .venv-vllm/.stamp")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus = ROOT / "mcp_servers" / "rag" / "corpus" / "documents.jsonl"
        runpy.run_path(str(TINY_MODEL))["main"]([folder, str(corpus)])
        settings = ServingSettings(
            model=folder, name=TINY, python=python, device="cpu", dtype="float32", trains=True
        )
        # As on a machine whose model has a device of its own: vLLM's threads spin, and would wait for the gateway.
        cores = os.sched_getaffinity(0)
        own = {min(cores)} if len(cores) > 1 else cores
        os.sched_setaffinity(0, own)
        try:
            async with ModelServer(settings) as server:
                os.sched_setaffinity(0, cores - own or cores)
                yield server
        finally:
            os.sched_setaffinity(0, cores)


def tiny_body(number: int) -> bytes:
    """Return a request for the tiny model."""
    messages = [{"role": "user", "content": f"{number:08d} {OPENING[:600]}"}]
    return msgspec.json.encode({"model": TINY, "messages": messages, "max_tokens": 64})


def told_body(number: int) -> bytes:
    """Return the same request for vLLM's chat, with the tokens and log-probabilities that a training needs."""
    asked = msgspec.json.decode(tiny_body(number), type=dict[str, Any])
    return msgspec.json.encode({**asked, "logprobs": True, "return_token_ids": True})


async def on_vllm(calls_alone: int, rounds: int) -> dict[str, float]:
    """Return what the exact path adds to vLLM's own chat, and the share of its throughput with 16 in flight."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served())
        if server is None:
            return {}
        bare = Endpoint("vLLM's chat", server.url, [server.key], body=told_body)
        exact = await stack.enter_async_context(ours(server.url, "exact", TINY, server.key))
        exact = exact._replace(body=tiny_body)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        single = await alone(session, [bare, exact], calls_alone)
        many = {side.name: Rounds() for side in (bare, exact)}
        for _ in range(rounds):
            for side in (bare, exact):
                await crowd(session, side, 10 * CROWD_ON_VLLM, many[side.name], in_flight=CROWD_ON_VLLM)
    ours_and_bare = zip(many[exact.name].rates, many[bare.name].rates, strict=True)
    return {
        "bare_p50": p(single[bare.name], 50),
        "adds_p50": p(single[exact.name], 50) - p(single[bare.name], 50),
        "adds_p95": p(single[exact.name], 95) - p(single[bare.name], 95),
        "share": statistics.median(own / bare for own, bare in ours_and_bare),
        "calls_per_second": statistics.median(many[bare.name].rates),
    }


async def measure(calls_alone: int, calls: int, rounds: int) -> tuple[list[Limit], dict[str, Any]]:
    """Measure all sides; return the limited figures, and everything."""
    vllm = await on_vllm(calls_alone, rounds)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(upstream())
        bare = Endpoint("bare endpoint", f"{url}/v1", ["none"])
        recorded = await stack.enter_async_context(ours(f"{url}/v1", "recorded"))
        exact = await stack.enter_async_context(ours(f"{url}/v1", "exact"))
        other = await stack.enter_async_context(lightning(url))
        sides = [bare, recorded, exact, *([other] if other else [])]
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        single = await alone(session, sides, calls_alone)
        many = {side.name: Rounds() for side in sides}
        for side in sides:
            await crowd(session, side, IN_FLIGHT, Rounds())
        for _ in range(rounds):
            for side in sides:
                await crowd(session, side, calls, many[side.name])
        turns = {
            side.name: [await conversation(session, side, caller, TURNS) for caller in range(3)]
            for side in (bare, recorded, exact)
        }
    limits, everything = _figures(single, many, turns)
    if vllm:
        limits += [
            Limit("exact adds p50 ms to vLLM's chat, alone", vllm["adds_p50"], 5),
            Limit("exact adds p95 ms to vLLM's chat, alone", vllm["adds_p95"], 12),
            Limit("vLLM's throughput / exact, 16 in flight", 1 / vllm["share"], 1 / 0.95),
        ]
    return limits, {**everything, "vllm": {name: round(value, 3) for name, value in vllm.items()}}


def _figures(
    single: dict[str, list[float]], many: dict[str, Rounds], turns: dict[str, list[list[float]]]
) -> tuple[list[Limit], dict[str, Any]]:
    everything: dict[str, dict[str, Any]] = {
        name: {
            "alone_ms": [round(p(single[name], 50), 2), round(p(single[name], 95), 2)],
            "at_200_ms": [round(p(rounds.times, 50), 1), round(p(rounds.times, 95), 1)],
            "calls_per_second": round(statistics.median(rounds.rates)),
            "cpu_ms": round(statistics.median(rounds.cpu), 2),
        }
        for name, rounds in many.items()
    }

    def added(name: str, key: str, place: int) -> float:
        return everything[name][key][place] - everything["bare endpoint"][key][place]

    def later(name: str) -> float:
        first = statistics.median(time for one in turns[name] for time in one[:5])
        return statistics.median(time for one in turns[name] for time in one[-5:]) / first

    recorded, exact = "gateway, recorded", "gateway, exact"
    for name in turns:
        everything[name]["turn_80"] = round(later(name), 2)
    return [
        Limit("recording adds p50 ms, 1 in flight", added(recorded, "alone_ms", 0), 2),
        Limit("recording adds p95 ms, 1 in flight", added(recorded, "alone_ms", 1), 5),
        Limit("recording adds p50 ms, 200 in flight", added(recorded, "at_200_ms", 0), 150),
        Limit("recording adds p95 ms, 200 in flight", added(recorded, "at_200_ms", 1), 220),
        Limit("CPU ms of a recorded call", everything[recorded]["cpu_ms"], 1.5),
        Limit("exact adds p50 ms, 1 in flight", added(exact, "alone_ms", 0), 5),
        Limit("exact adds p95 ms, 1 in flight", added(exact, "alone_ms", 1), 12),
        Limit("recorded call at turn 80 / first", later(recorded), 1.5),
        Limit("exact call at turn 80 / first", later(exact), 1.5),
    ], everything


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Model calls through the gateway.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    parser.add_argument("--short", action="store_true", help="few calls, to try it")
    given = parser.parse_args()
    sizes = (10, 200, 1) if given.short else (CALLS_ALONE, CALLS, ROUNDS)
    limits, everything = asyncio.run(measure(*sizes))
    print(f"{'':<20} {'p50/p95 ms, 1':>16} {'p50/p95 ms, 200':>18} {'calls/s':>8} {'CPU ms':>7}")
    for name, one in everything.items():
        if "alone_ms" not in one:
            continue
        alone_ms, crowd_ms = ("/".join(map(str, one[key])) for key in ("alone_ms", "at_200_ms"))
        print(f"{name:<20} {alone_ms:>16} {crowd_ms:>18} {one['calls_per_second']:>8} {one['cpu_ms']:>7}")
    met = all(limit.value <= limit.most for limit in limits)
    for limit in limits:
        state = "ok" if limit.value <= limit.most else "MISSED"
        print(f"{limit.name:<42} {limit.value:9.2f}   <= {limit.most:<7.4g} {state}")
    print(json.dumps({"benchmark": "gateway", "met": met, **everything}))
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
