"""A server that one client attacks while another one works.

Run `python benchmarks/attacker.py [--check] [--workers N]`: prints the latency of a client's calls before and during the attacks
of another client with a valid token (JSON bombs and unasked replies on control channels, calls with 900,000 arguments, 800 half-open
connections, all sessions, 300 long calls, an external server that sends too much, a line of 300 MB), and the peak memory of the
server. With `--check` it exits with 1 if the 95th percentile more than doubles or the memory reaches 600 MB.
"""

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.sandbox import Sandbox
from benchmarks._attacks import ATTACKS
from benchmarks._rows import Row, report
from benchmarks.tools import p95, served

TOKENS = {"attacker": "token-of-the-attacker", "client": "token-of-the-client"}
CALLS = 100
ROUNDS = 3
PAUSE_SECONDS = 0.05
"""Time between the calls of a client that works."""
CALLS_PER_SESSION = 50
SETTLE_SECONDS = 5.0
MAX_RATIO = 2.0
MAX_MB = 600.0
NAMES = [one.__name__ for one in ATTACKS]
HERE = Path(__file__).resolve().parent


def settings() -> dict[str, object]:
    """The server's settings."""
    hostile = {"command": [sys.executable, str(HERE / "_attacks.py"), "serve"]}
    return {
        "backends": {"bash": {}, "code": {}, "files": {}, "mcp": {"servers": {"hostile": hostile}}},
        "tokens": TOKENS,
        "sessions": {"max_sessions": 128},
        "log_level": "error",
    }


async def latencies(url: str, calls: int) -> list[float]:
    """Seconds of a client's calls, and of the starts of its sessions."""
    found: list[float] = []
    for _ in range(calls // CALLS_PER_SESSION):
        begin = time.perf_counter()
        async with Sandbox(url, token=TOKENS["client"]) as sandbox:
            assert (await sandbox.execute("bash:run", {"command": "cd /tmp"})).ok
            found.append(time.perf_counter() - begin)
            for number in range(1, CALLS_PER_SESSION):
                await anyio.sleep(PAUSE_SECONDS)
                begin = time.perf_counter()
                result = await sandbox.execute("bash:run", {"command": f"echo {number} | tee -a log | wc -l"})
                found.append(time.perf_counter() - begin)
                assert result.ok, result
    return found


@contextmanager
def attacked(url: str, attacks: Sequence[str]) -> Generator[None]:
    """Attack a server; enter when every attack has run once."""
    command = [sys.executable, str(HERE / "_attacks.py"), "attack", url, TOKENS["attacker"], *attacks]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            running: set[str] = set()
            while not running.issuperset(attacks):
                line = process.stdout.readline()
                assert line, "the attacker has ended"
                running.add(line.strip())
                print("running:", line.strip(), file=sys.stderr)
            yield
        finally:
            process.kill()


def servers(url: str) -> list[psutil.Process]:
    """The processes of the server that answer requests."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    front = next(
        child
        for child in psutil.Process().children()
        if any(one.laddr.port == port for one in child.net_connections("tcp"))
    )
    workers = [child for child in front.children() if "mcp_servers.serving._worker" in child.cmdline()]
    return [front, *workers]


def peak_mb(process: psutil.Process) -> float:
    """The most memory that a process has had, in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError("no peak")


def measure(url: str, attacks: Sequence[str]) -> list[Row]:
    """Latency and memory, without and with the attacks."""
    anyio.run(latencies, url, CALLS_PER_SESSION)
    rounds: list[tuple[list[float], list[float]]] = []
    for _ in range(ROUNDS):
        alone = anyio.run(latencies, url, CALLS)
        with attacked(url, attacks):
            rounds.append((alone, anyio.run(latencies, url, CALLS)))
        # The server ends the calls of the attacker, and the attacker's sessions are left.
        time.sleep(SETTLE_SECONDS)
    ratio = statistics.median(p95(beside) / p95(alone) for alone, beside in rounds)
    alone = [seconds for part, _ in rounds for seconds in part]
    beside = [seconds for _, part in rounds for seconds in part]
    slowest = max(map(peak_mb, servers(url)))
    total = sum(map(peak_mb, servers(url)))
    return [
        Row("p95_ms", p95(beside) * 1000, p95(alone) * 1000, "without attacks"),
        Row("p95_ratio", ratio, 1.0, "without attacks", MAX_RATIO),
        Row("slowest_call_ms", max(beside) * 1000, max(alone) * 1000, "without attacks"),
        Row("peak_memory_of_a_process_mb", slowest, MAX_MB, "limit", MAX_MB),
        Row("peak_memory_of_the_server_mb", total, MAX_MB, "limit", MAX_MB),
    ]


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is missed")
    parser.add_argument("--attacks", nargs="+", default=NAMES, choices=NAMES, help="by default all")
    parser.add_argument("--workers", default="1", metavar="N", help="worker processes of the server")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "server.json")
        file.write_text(json.dumps(settings()), encoding="utf-8")
        command = ["-m", "mcp_servers", "--config", str(file), "--http", "127.0.0.1:PORT"]
        with served(*command, "--workers", options.workers) as url:
            rows = measure(url, options.attacks)
    held = report(rows, "attacked", digits=1)
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
