"""Cost of tracing: of an operation with and without a provider, and of a synthesis that sends its spans beside one that does not.

Run `python benchmarks/tracing.py [--check]`: prints a table, and as the last line one JSON object. With `--check` it exits
with 1 if a limit is missed. Pairs of syntheses run in one process, each pair in the other order than the one before, and
a ratio is the median of the pairs. The limit is one of time, with a model behind an endpoint that answers after half a
second. The CPU of the process is printed beside it: it also has the endpoint's own, and the sending thread's; the collector is
another process. On a busy machine the time varies by more than the limit between two equal runs; then the CPU that
tracing adds, as a share of the run's time, tells more. The ratios with a faster endpoint and with the offline engine, which never waits, have no limit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import anyio

from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisPipeline
from agentflow.telemetry import (
    RunTrace,
    flush_tracing,
    mark_spans,
    model_operation,
    role_operation,
    start_tracing,
    tool_operation,
)
from agentflow.testing import fake_endpoint

OPERATIONS = 100_000
TRACED = 9_000
BURST = 300
"""Operations between two moments in which the queue of spans is sent; it holds 2,048."""
ROUNDS = {500.0: 5, 50.0: 6, 0.0: 5}
"""Pairs for each delay of the model in milliseconds; 0: the offline engine."""
DELAY = 500.0
"""Delay for which the limit holds."""
LIMIT_MICROSECONDS = 10.0
LIMIT_SHARE = 1.03
_REQUEST = {
    "server.address": "127.0.0.1",
    "server.port": 8000,
    "agentflow.role": "planner",
    "gen_ai.output.type": "json",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.request.max_tokens": 1_000,
}
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def without_provider() -> float:
    """Microseconds of an operation that is emitted nowhere: a mark, a span, an attribute."""
    assert "opentelemetry.sdk.trace" not in sys.modules, "no provider must be loaded"
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(OPERATIONS // 2):
            with mark_spans(node="0-1"), tool_operation("bash_run") as operation:
                operation.set("agentflow.attempts", 1)
            with role_operation("planner", "plan") as operation:
                operation.content("gen_ai.input.messages", list)
        best = min(best, (time.perf_counter() - started) / OPERATIONS * 1e6)
    return best


@contextmanager
def collector() -> Generator[str]:
    """Run a collector that takes everything."""
    with subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def synthesis(tracing: bool | str, model: str) -> tuple[float, float]:
    """Seconds of a synthesis, and its CPU seconds.

    :param model: address of the model; empty: the offline engine.
    """
    endpoint: dict[str, object] = (
        {"model_name": "painter", "base_url": model} if model else {"model_name": "offline"}
    )
    with tempfile.TemporaryDirectory() as folder:
        given = {
            **endpoint,
            "control": False,
            "tracing": tracing,
            "number_of_seed": 2,
            "available_tools": ["rag_search"],
        }
        pipeline = SynthesisPipeline(SynthesisConfig.model_validate(given), folder)
        topics = ["Skyreach Observatory", "The harbour"]
        started, cpu = time.perf_counter(), time.process_time()
        await pipeline.arun(topics, progress=False)
        return time.perf_counter() - started, time.process_time() - cpu


def with_provider() -> float:
    """CPU microseconds of an operation whose span and metrics are made, encoded and sent."""
    began = 0.0
    for measured in (False, True):
        began = time.process_time()
        with RunTrace("synthesis", "key") as run, run.seed("0", "seed", agent="team"):
            for number in range(TRACED // 3 if measured else BURST):
                with mark_spans(node="0-1", effect="act/0-1"), tool_operation("bash_run"):
                    pass
                with (
                    role_operation("planner", "plan"),
                    model_operation("painter", "openai", _REQUEST) as call,
                ):
                    call.count("agentflow.attempts")
                    call.set("gen_ai.response.model", "painter")
                    call.set("gen_ai.usage.input_tokens", 1_000)
                    call.set("gen_ai.usage.output_tokens", 100)
                if number % BURST == 0:
                    flush_tracing(60)
        flush_tracing(60)
    return (time.process_time() - began) / TRACED * 1e6


class Ratios(NamedTuple):
    """Medians over the pairs of a scenario."""

    time: float
    """Time with tracing, divided by that without."""
    cpu: float
    """CPU of the process, likewise."""
    added: float
    """CPU that tracing adds, as a share of the time without: by so much a run of one core can take longer."""


async def compare(url: str, delay: float) -> Ratios:
    """Compare syntheses with and without tracing."""
    times: list[float] = []
    cpu: list[float] = []
    added: list[float] = []
    async with fake_endpoint(delay_ms=delay) as served:
        model = served if delay else ""
        for number in range(-1, ROUNDS[delay]):
            order = (False, url) if number % 2 else (url, False)
            found = {bool(tracing): await synthesis(tracing, model) for tracing in order}
            if number >= 0:
                times.append(found[True][0] / found[False][0])
                cpu.append(found[True][1] / found[False][1])
                added.append((found[True][1] - found[False][1]) / found[False][0])
    return Ratios(median(times), median(cpu), median(added))


async def measure(url: str) -> dict[float, Ratios]:
    """Return the ratios for each delay."""
    return {delay: await compare(url, delay) for delay in ROUNDS}


def main(check: bool) -> int:
    microseconds = without_provider()
    with collector() as url:
        start_tracing(url)
        traced = with_provider()
        found = anyio.run(measure, url)
    print(f"operation without a provider         {microseconds:7.2f} µs   (limit {LIMIT_MICROSECONDS:g} µs)")
    print(f"operation that is sent, CPU          {traced:7.2f} µs   (no limit)")
    for delay, ratios in found.items():
        what = f"answers after {delay:g} ms" if delay else "offline engine"
        limit = f"(limit {LIMIT_SHARE:g})" if delay == DELAY else "(no limit)"
        print(
            f"synthesis, {what:24}  {ratios.time:7.3f}      {limit}, CPU {ratios.cpu:.3f}, added {ratios.added:.1%}"
        )
    figures = {f"{delay:g}": [round(each, 4) for each in ratios] for delay, ratios in found.items()}
    print(
        json.dumps(
            {"microseconds": round(microseconds, 3), "sent": round(traced, 1), "time_cpu_added": figures}
        )
    )
    return int(check and (microseconds > LIMIT_MICROSECONDS or found[DELAY].time > LIMIT_SHARE))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    sys.exit(main(parser.parse_args().check))
