"""Cost of tracing: an operation without a provider, and a synthesis that sends its spans beside one that does not.

Run `python benchmarks/tracing.py [--check]`: prints a table, and as the last line one JSON object. With `--check` it exits
with 1 if a limit is missed. Both syntheses take turns in one process, and a ratio is the median of the pairs. Their model is
behind an endpoint that answers after half a second; the collector is another process. The CPU of the whole process is measured
with the offline engine, which never waits: there, a span is emitted for each 650 µs of work.
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

import anyio

from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisPipeline
from agentflow.telemetry import mark_spans, role_operation, start_tracing, tool_operation
from agentflow.testing import fake_endpoint

OPERATIONS = 100_000
ROUNDS = 3
DELAY = 500.0
"""Milliseconds of an answer of the model."""
LIMIT_MICROSECONDS = 10.0
LIMIT_SHARE = 1.03
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


async def measure() -> tuple[list[float], list[float]]:
    """Return the ratios of pairs: of seconds with a model at an endpoint, and of CPU with the offline engine."""
    with collector() as url:
        start_tracing(url)
        async with fake_endpoint(delay_ms=DELAY) as model:
            await synthesis(url, model)
            timed = [(await synthesis(False, model), await synthesis(url, model)) for _ in range(ROUNDS)]
        await synthesis(url, "")
        worked = [(await synthesis(False, ""), await synthesis(url, "")) for _ in range(ROUNDS)]
    return (
        [traced[0] / plain[0] for plain, traced in timed],
        [traced[1] / plain[1] for plain, traced in worked],
    )


def main(check: bool) -> int:
    microseconds = without_provider()
    times, cpu = anyio.run(measure)
    share, offline = median(times), median(cpu)
    print(
        f"operation without a provider             {microseconds:6.2f} µs   (limit {LIMIT_MICROSECONDS:g} µs)"
    )
    print(f"time of a synthesis that sends traces    {share:6.3f}      (limit {LIMIT_SHARE:g})")
    print(f"CPU of one with the offline engine       {offline:6.3f}      (no limit)")
    print(
        json.dumps(
            {
                "microseconds": round(microseconds, 3),
                "time": round(share, 4),
                "offline_cpu": round(offline, 4),
            }
        )
    )
    return int(check and (microseconds > LIMIT_MICROSECONDS or share > LIMIT_SHARE))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    sys.exit(main(parser.parse_args().check))
