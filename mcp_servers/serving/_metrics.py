"""Server metrics in Prometheus text format."""

import os
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from mcp_servers.core._call import ToolResult

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the call duration histogram, in seconds."""

Gauges: TypeAlias = Mapping[str, tuple[str, float]]
"""Name -> description and current value."""


class Metrics:
    """Counters of calls and refusals, labelled by tool and reason, never by client or session."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._running = 0
        self._calls: Counter[tuple[str, str]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._refused: Counter[str] = Counter()

    @contextmanager
    def call(self, tool: str) -> Generator[Callable[[ToolResult], None]]:
        """Count the block as a call of that tool; pass its result to the yielded function."""
        begin, outcome = self._clock(), "cancelled"

        def ended(result: ToolResult) -> None:
            nonlocal outcome
            outcome = "ok" if result.error is None else str(result.error.kind)

        self._running += 1
        try:
            yield ended
        finally:
            self._running -= 1
            seconds = self._clock() - begin
            self._calls[tool, outcome] += 1
            self._seconds[tool] += seconds
            self._times.setdefault(tool, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1

    def refused(self, status: int) -> None:
        """Count a refused request."""
        self._refused[str(status)] += 1

    def render(self, gauges: Gauges) -> str:
        """Return all metrics, including the given gauges."""
        lines = [
            *_family("agentflow_calls_total", "counter", "Calls by tool and outcome.", self._call_lines()),
            *_family(
                "agentflow_call_seconds", "histogram", "Duration of calls, by tool.", self._time_lines()
            ),
            *_family(
                "agentflow_refused_requests_total",
                "counter",
                "Refused requests, by HTTP status.",
                (
                    f'agentflow_refused_requests_total{{status="{status}"}} {count}'
                    for status, count in sorted(self._refused.items())
                ),
            ),
        ]
        own_gauges: Gauges = {
            "agentflow_calls_running": ("Running and waiting calls.", self._running),
            "agentflow_uptime_seconds": ("Seconds since the start.", round(self._clock() - self._begun, 3)),
        }
        for name, (about, value) in {**own_gauges, **gauges}.items():
            lines += _family(name, "gauge", about, [f"{name} {value}"])
        return "\n".join(lines) + "\n"

    def _call_lines(self) -> Iterable[str]:
        for (tool, outcome), count in sorted(self._calls.items()):
            yield f'agentflow_calls_total{{tool="{tool}",outcome="{outcome}"}} {count}'

    def _time_lines(self) -> Iterable[str]:
        for tool, counts in sorted(self._times.items()):
            below = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                below += count
                yield f'agentflow_call_seconds_bucket{{tool="{tool}",le="{bound}"}} {below}'
            yield f'agentflow_call_seconds_sum{{tool="{tool}"}} {self._seconds[tool]}'
            yield f'agentflow_call_seconds_count{{tool="{tool}"}} {below}'


def _family(name: str, kind: str, about: str, lines: Iterable[str]) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines]


def together(texts: Mapping[str, str]) -> str:
    """Merge the metrics of several processes; each sample gets the label `worker` with the key of its text."""
    families: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family: list[str] = []
        for line in text.splitlines():
            if line.startswith("# HELP"):
                family = families.setdefault(line, [])
            elif line.startswith("#"):
                family += [] if line in family else [line]
            else:
                name, brace, rest = line.partition("{")
                label = f'worker="{worker}"'
                name, _, value = (name, "", rest) if brace else line.partition(" ")
                family.append(f"{name}{{{label},{value}" if brace else f"{name}{{{label}}} {value}")
    return "\n".join(line for about, family in families.items() for line in (about, *family)) + "\n"


def own_usage() -> Gauges:
    """Return the memory and open descriptors of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors = len(os.listdir("/proc/self/fd"))
    return {
        "process_resident_memory_bytes": ("Memory of the server's own process.", memory),
        "process_open_fds": ("Open descriptors of the server's own process.", descriptors),
    }
