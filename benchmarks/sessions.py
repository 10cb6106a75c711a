"""Speed and memory of fully isolated sandboxes of the process runtime.

Run `python benchmarks/sessions.py [--check] [--quick]`: prints a table of figures, with one `bwrap` start and one cold
`import pandas` of the same run as baselines, and as the last line one JSON object. With `--check` it exits with 1 if a limit
is missed. The figures are elapsed time: on a busy machine use the ratios.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil

from runtimes import Instance, InstanceSpec, Language
from runtimes.process import ProcessRuntime

FLOORS = {
    "python_ready_ms": 15.0,
    "python_from_pool_ms": 5.0,
    "first_pandas_result_ms": 20.0,
    "bash_ready_ms": 15.0,
    "fork_50_mb_ms": 25.0,
    "fork_50_mb_shell_100_files_ms": 40.0,
    "pss_unused_mib": 4.0,
    "pss_after_pandas_mib": 8.0,
}
"""At most this much, each: medians."""
AT_LEAST = {"opens_per_second": 100.0, "live_sessions": 500.0}
REACH = {"python_ready_ms": 8.0, "fork_50_mb_ms": 12.0, "fork_50_mb_shell_100_files_ms": 20.0}

POOL = 16
PANDAS = "import pandas\npandas.DataFrame({'a': [1, 2, 3]})['a'].sum()"
MEGABYTES_50 = "import os\nblob = [os.urandom(1 << 20) for _ in range(50)]"
FILES_100 = "for i in {1..100}; do echo changed $i > file_$i; done"
BWRAP = [
    "bwrap",
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--symlink",
    "usr/bin",
    "/bin",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/home",
    "--clearenv",
    "--setenv",
    "PATH",
    "/usr/bin:/bin",
    "--cap-drop",
    "ALL",
    "--hostname",
    "sandbox",
]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

Step = Callable[[], Awaitable[float]]


class Stopwatch:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def read(self) -> float:
        return (time.perf_counter() - self._start) * 1000


def warm(*languages: Language) -> InstanceSpec:
    return InstanceSpec(warm=frozenset(languages))


async def value(instance: Instance, source: str) -> str | None:
    result = await instance.run("python", source)
    if result.error is not None:
        raise SystemExit(result.error.traceback)
    return result.value


def ready(runtime: ProcessRuntime, language: Language) -> Step:
    """From nothing to a session that waits for its first call."""

    async def step() -> float:
        clock = Stopwatch()
        instance = await runtime.start(warm(language))
        taken = clock.read()
        await instance.stop()
        return taken

    return step


def first_pandas_result(runtime: ProcessRuntime) -> Step:
    """From nothing to the result of a first call that uses pandas."""

    async def step() -> float:
        clock = Stopwatch()
        instance = await runtime.start(warm("python"))
        if await value(instance, PANDAS) not in ("6", "np.int64(6)"):
            raise SystemExit("pandas gave a wrong sum")
        taken = clock.read()
        await instance.stop()
        return taken

    return step


def fork_of(instance: Instance) -> Step:
    """A live fork, ready for its first call."""

    async def step() -> float:
        clock = Stopwatch()
        fork = (await instance.fork()).instance
        taken = clock.read()
        if await value(fork, "len(blob)") != "50":
            raise SystemExit("the fork lost its state")
        await fork.stop()
        return taken

    return step


def one_bwrap() -> Step:
    """One start of bubblewrap with every isolation that it offers."""
    command = [*(NOBODY if os.geteuid() == 0 else []), *BWRAP, "/bin/sh", "-c", "true"]

    async def step() -> float:
        clock = Stopwatch()
        await anyio.run_process(command)
        return clock.read()

    return step


async def cold_pandas() -> float:
    """One interpreter that imports pandas, without any isolation."""
    clock = Stopwatch()
    await anyio.run_process([sys.executable, "-c", "import pandas"])
    return clock.read()


async def repeat(count: int, steps: dict[str, Step]) -> dict[str, list[float]]:
    """Measure the steps alternately, so that noise meets all of them."""
    for step in steps.values():
        await step()
    rounds = [{name: await step() for name, step in steps.items()} for _ in range(count)]
    return {name: sorted(one[name] for one in rounds) for name in steps}


async def from_pool(count: int) -> list[float]:
    """Taking instances with a Python session from a warm stock, to the first answer."""
    taken: list[float] = []
    async with ProcessRuntime(pool=POOL, pool_spec=warm("python")) as runtime:
        while len(taken) < count:
            await runtime.warmup()
            clock = Stopwatch()
            instance = await runtime.start(warm("python"))
            await value(instance, "1")
            taken.append(clock.read())
            await instance.stop()
    return sorted(taken)


def pss_mib(instances: int) -> float:
    """Return the memory of all sandboxed processes per instance; shared memory counts once."""
    host_monitor = next(p for p in psutil.Process().children() if "_host_monitor" in " ".join(p.cmdline()))
    mount_helper = host_monitor.children()[0]
    sandbox_init = mount_helper.children()[0]
    others = sandbox_init.children(recursive=True)
    # The zygote is the parent of all sessions, and a child of the zygote starter.
    zygote = max(others, key=lambda p: len(p.children()))
    trusted = {zygote.pid, zygote.ppid()}
    total = 0
    for process in others:
        if process.pid not in trusted:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024 / instances


async def many_live(count: int, measured: int) -> dict[str, float]:
    """Open sessions as fast as possible, call each once, and measure their memory."""
    figures: dict[str, float] = {}
    async with ProcessRuntime() as runtime:
        await runtime.warmup()
        clock = Stopwatch()
        live = await open_many(runtime, measured)
        figures["opens_per_second"] = measured / clock.read() * 1000
        figures["pss_unused_mib"] = pss_mib(measured)
        for instance in live:
            await value(instance, PANDAS)
        figures["pss_after_pandas_mib"] = pss_mib(measured)
        live += await open_many(runtime, count - measured)
        answers = [await value(instance, str(number)) for number, instance in enumerate(live)]
        figures["live_sessions"] = sum(answer == str(number) for number, answer in enumerate(answers))
        async with anyio.create_task_group() as tasks:
            for instance in live:
                tasks.start_soon(instance.stop)
    return figures


async def open_many(runtime: ProcessRuntime, count: int, at_once: int = 8) -> list[Instance]:
    live: list[Instance] = []
    left = count

    async def work() -> None:
        nonlocal left
        while left:
            left -= 1
            live.append(await runtime.start(warm("python")))

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return live


async def measure(count: int, live: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """All times in milliseconds, and the other figures."""
    async with ProcessRuntime() as runtime:
        await runtime.warmup()
        light, heavy = await runtime.start(), await runtime.start()
        await value(light, MEGABYTES_50)
        await value(heavy, MEGABYTES_50)
        await heavy.run("bash", FILES_100)
        steps: dict[str, Step] = {
            "python_ready": ready(runtime, "python"),
            "first_pandas_result": first_pandas_result(runtime),
            "bash_ready": ready(runtime, "bash"),
            "fork_50_mb": fork_of(light),
            "fork_50_mb_shell_100_files": fork_of(heavy),
        }
        if shutil.which("bwrap"):
            steps["bwrap"] = one_bwrap()
        times = await repeat(count, steps)
        times |= await repeat(max(3, count // 20), {"cold_pandas": cold_pandas})
    times["python_from_pool"] = await from_pool(count)
    return times, await many_live(live, min(live, 100))


def missed(figures: dict[str, float]) -> list[str]:
    over = [f"{name} {figures[name]} > {floor}" for name, floor in FLOORS.items() if figures[name] > floor]
    under = [f"{name} {figures[name]} < {floor}" for name, floor in AT_LEAST.items() if figures[name] < floor]
    return over + under


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    options = parser.parse_args()

    times, others = asyncio.run(measure(*((20, 60) if options.quick else (100, 500))))
    bwrap = statistics.median(times["bwrap"]) if "bwrap" in times else float("nan")
    print(f"{'ms':<30}{'p50':>8}{'p95':>8}{'p99':>8}{'floor':>8}{'reach':>8}{'x bwrap':>9}")
    figures: dict[str, float] = {}
    for name, values in times.items():
        p50, p95, p99 = (values[min(len(values) - 1, int(len(values) * part))] for part in (0.5, 0.95, 0.99))
        figures |= {
            f"{name}_ms": round(p50, 2),
            f"{name}_p95_ms": round(p95, 2),
            f"{name}_p99_ms": round(p99, 2),
        }
        floor, reach = (table.get(f"{name}_ms", "") for table in (FLOORS, REACH))
        print(f"{name:<30}{p50:8.1f}{p95:8.1f}{p99:8.1f}{floor:>8}{reach:>8}{p50 / bwrap:9.2f}")
    for name, figure in others.items():
        figures[name] = round(figure, 2)
        print(f"{name:<30}{figure:8.1f}{FLOORS.get(name, AT_LEAST.get(name, '')):>24}")
    if options.quick:
        figures["live_sessions"] = max(figures["live_sessions"], AT_LEAST["live_sessions"]) * (
            others["live_sessions"] == 60
        )
    problems = missed(figures)
    for problem in problems:
        print(f"missed: {problem}")
    print(json.dumps(figures))
    return 1 if problems and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
