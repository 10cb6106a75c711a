"""Start-up time: `import agentflow`, and the second `make run` to its first line of output."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {"import_seconds": 0.3, "first_line_seconds": 2.0}
"""At most this much, each."""


def to_the_end(*command: str) -> Callable[[], float]:
    """Seconds until a command has ended."""

    def run() -> float:
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True)
        return time.perf_counter() - begin

    return run


def to_the_first_line(*command: str) -> Callable[[], float]:
    """Seconds until a command has printed a line; its end is waited for, but not counted."""

    def run() -> float:
        begin = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            seconds = time.perf_counter() - begin
            process.stdout.read()
        if not line:
            raise SystemExit(f"{' '.join(command)} printed nothing")
        return seconds

    return run


def median_seconds(runs: int, steps: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median time of each step; steps alternate, so that noise meets all of them."""
    rounds = [{name: step() for name, step in steps.items()} for _ in range(runs)]
    return {name: statistics.median(measured[name] for measured in rounds) for name in steps}


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()

    steps = {
        "python -c pass": to_the_end(sys.executable, "-c", "pass"),
        "import agentflow": to_the_end(sys.executable, "-c", "import agentflow"),
        "from agentflow import Sandbox": to_the_end(sys.executable, "-c", "from agentflow import Sandbox"),
        "make run, first line": to_the_first_line("make", "run"),
    }
    median_seconds(1, steps)
    seconds = median_seconds(options.runs, steps)
    bare = seconds["python -c pass"]
    for name, measured in seconds.items():
        print(f"{name:<32}{measured * 1000:8.1f} ms{measured / bare:8.2f} x python -c pass")
    figures = {
        "import_seconds": round(seconds["import agentflow"] - bare, 4),
        "first_line_seconds": round(seconds["make run, first line"], 4),
        "import_ratio": round(seconds["import agentflow"] / bare, 2),
        "first_line_ratio": round(seconds["make run, first line"] / bare, 2),
    }
    missed = [name for name, floor in FLOORS.items() if figures[name] > floor]
    for name in missed:
        print(f"missed: {name} {figures[name]} > {FLOORS[name]}")
    print(json.dumps(figures))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
