"""Many workers on one Postgres: entries per second, the time of a claim, and leases that were lost.

Run `python benchmarks/scaling.py [--check] [--workers N] [--seconds S] [--rate R]`: prints a table, and as the last line
one JSON object. With `--check` it exits with 1 if a limit is missed. A worker has a journal of its own, with its own writer and
connections, as a process of a run has, and does with the code of the product the work of one: it claims a seed, opens its page,
writes entries of 2 kB, at most eight of them in flight, as growth does, and finishes it; a second task renews its leases. Each
worker also holds one seed during the whole measurement, many times longer than a lease. Workers are tasks of a few processes,
so that on a small machine the interpreters leave the database a processor; the server commits with `fsync`.

It measures twice. In the first part every worker writes as fast as it can. In the second the workers write `--rate` entries
per second together, each at its own times, as workers do that wait for models: a claim that waits for a queue which the
benchmark itself fills says nothing about claims. The limits apply to the second part. A seed that two workers hold, a lease
that ran out while its worker lives (claims take the seed of the lowest index, so the next one takes it), and an acknowledged
entry that is missing count as lost, in both parts.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles

import anyio
import msgspec
from msgspec import Struct
from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.actors import SYSTEM_CLOCK
from agentflow.journal import NewSeed, Run, SeedTaken, open_journal
from agentflow.journal._database import JournalDatabase, backend_for
from tests._postgres import postgres_server

ENTRIES = 40
"""Entries of a seed, the nodes of a small tree."""
BODY = "".join(f"{number:x}" for number in range(3_000))[:1_900]
LEASE_SECONDS = 3.0
"""A tenth of that of runs: a worker that renews too late is found in a short measurement."""
RENEW_SECONDS = LEASE_SECONDS / 3
LEAST_PER_SECOND, MOST_CLAIM_MS = 5_000.0, 50.0
RUN = "scaling"


class Entry(Struct, frozen=True):
    """Recorded content."""

    node: int
    text: str


class WorkerReport(Struct):
    """Work of one worker."""

    owner: str
    finished: list[int] = msgspec.field(default_factory=list[int])
    """Seeds."""
    claims: list[float] = msgspec.field(default_factory=list[float])
    """Seconds of each claim that returned a seed."""
    acknowledged: int = 0
    """Entries that were on disk in the time of the measurement."""
    taken: int = 0
    """Seeds that another worker took over although this one lives."""


class Schedule(Struct, frozen=True):
    """Times of one worker, by the clock that all processes share."""

    begin: float
    """Begin of the measurement."""
    end: float
    """End of the measurement."""
    interval: float
    """Seconds from one entry to the next; 0: as fast as possible."""
    offset: float
    """Time of the first entry, after `start`."""

    @property
    def start(self) -> float:
        """Time at which the worker starts, before the measurement."""
        return self.begin - 2.0

    async def wait_for(self, entry: int) -> None:
        """Wait until it is time for an entry."""
        if self.interval:
            due = self.start + self.offset + entry * self.interval
            await anyio.sleep(max(0.0, due - time.monotonic()))


async def work(run: Run, report: WorkerReport, schedule: Schedule) -> None:
    """Claim, write and finish seeds until the time is over."""
    entry = 0
    while time.monotonic() < schedule.end:
        began = time.monotonic()
        claimed = await run.claim(report.owner, 1)
        if schedule.begin <= began < schedule.end:
            report.claims.append(time.monotonic() - began)
        if not claimed:
            raise RuntimeError("all seeds are finished: add more")
        (seed,) = claimed
        page = await run.open_page(seed)
        acknowledged = 0
        try:
            for node in range(ENTRIES):
                await schedule.wait_for(entry)
                await page.note(f"act/{node}", Entry(node, BODY))
                acknowledged += schedule.begin <= time.monotonic() < schedule.end
                entry += 1
            await run.finish(seed, BODY.encode())
        except SeedTaken:
            report.taken += 1
        else:
            report.finished.append(seed.index)
            report.acknowledged += acknowledged


async def live(url: str, owner: str, schedule: Schedule) -> WorkerReport:
    """Run one worker with a journal of its own."""
    report = WorkerReport(owner)
    async with open_journal(url) as journal:
        run = await journal.open_run(RUN, {}, lease_seconds=LEASE_SECONDS)
        await anyio.sleep(max(0.0, schedule.start - time.monotonic()))
        (held,) = await run.claim(owner, 1)
        async with anyio.create_task_group() as tasks:

            async def renew() -> None:
                while True:
                    await anyio.sleep(RENEW_SECONDS)
                    await run.renew(owner)

            tasks.start_soon(renew)
            await work(run, report, schedule)
            try:
                await run.finish(held, b"")
            except SeedTaken:
                report.taken += 1
            tasks.cancel_scope.cancel()
    return report


async def live_all(url: str, schedules: Mapping[str, Schedule]) -> None:
    """Run the workers of one process and print their reports."""
    reports: list[WorkerReport] = []

    async def one(name: str) -> None:
        reports.append(await live(url, name, schedules[name]))

    async with anyio.create_task_group() as tasks:
        for name in schedules:
            tasks.start_soon(one, name)
    sys.stdout.buffer.write(msgspec.json.encode(reports))


async def prepare(url: str, seeds: int) -> None:
    """Add the seeds."""
    async with open_journal(url) as journal:
        run = await journal.open_run(RUN, {})
        await run.add_seeds([NewSeed(f"topic {number}") for number in range(seeds)])


def measure(url: str, given: argparse.Namespace, rate: float) -> list[WorkerReport]:
    """Let the workers of all processes work at once."""
    # The clock is that of the machine: all processes read the same one.
    begin = time.monotonic() + 4.0 + 0.1 * given.workers
    interval = given.workers / rate if rate else 0.0
    # Seeds of different workers begin at different times.
    schedules = [
        Schedule(begin, begin + given.seconds, interval, ENTRIES * interval * number / given.workers)
        for number in range(given.workers)
    ]
    running: list[subprocess.Popen[bytes]] = []
    for first in range(given.processes):
        own = {
            f"worker-{number}": schedules[number] for number in range(first, given.workers, given.processes)
        }
        command = [sys.executable, __file__, "--worker", url, msgspec.json.encode(own).decode()]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    reports: list[WorkerReport] = []
    for process in running:
        printed, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a worker ended with {process.returncode}")
        reports += msgspec.json.decode(printed, type=list[WorkerReport])
    return reports


async def ask(url: str, *queries: str) -> list[float]:
    """Return the first value of each query."""
    database = JournalDatabase(backend_for(url), 60.0, SYSTEM_CLOCK)
    try:
        return [
            await database.read(lambda connection, query=query: float(connection.scalar(text(query)) or 0))
            for query in queries
        ]
    finally:
        await database.close()


def size_of(name: str, function: str = "pg_total_relation_size") -> str:
    """Return the query for the size of a relation."""
    return f"SELECT {function}('{name}')"


def count_lost(reports: Sequence[WorkerReport], claimed_again: float, entries: float) -> int:
    """Count seeds with two holders or a lease that ran out, and acknowledged entries that are missing."""
    finished = Counter(seed for report in reports for seed in report.finished)
    twice = sum(number - 1 for number in finished.values())
    taken = sum(report.taken for report in reports)
    missing = max(0, len(finished) * ENTRIES - int(entries))
    return twice + taken + int(claimed_again) + missing


def figures_of(url: str, given: argparse.Namespace, rate: float) -> dict[str, float]:
    """Measure, and return all figures by name."""
    wal = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
    anyio.run(prepare, url, given.seeds)
    (wal_before,) = anyio.run(ask, url, wal)
    reports = measure(url, given, rate)
    wal_after, twice, rows, table, key, news, seeds = anyio.run(
        ask,
        url,
        wal,
        "SELECT count(*) FROM agentflow_seeds WHERE done AND claims > 1",
        "SELECT count(*) FROM agentflow_entries",
        size_of("agentflow_entries"),
        size_of("agentflow_entries_pkey", "pg_relation_size"),
        size_of("agentflow_news", "pg_relation_size"),
        size_of("agentflow_seeds"),
    )
    claims = [claim * 1_000 for report in reports for claim in report.claims]
    places = quantiles(claims, n=100)
    return {
        "entries_per_second": sum(report.acknowledged for report in reports) / given.seconds,
        "claims": len(claims),
        "claim_p50_ms": places[49],
        "claim_p95_ms": places[94],
        "claim_max_ms": max(claims),
        "lost": count_lost(reports, twice, rows),
        "rows": rows,
        "bytes_per_entry": table / rows,
        "index_bytes_per_entry": (key + news) / rows,
        "wal_bytes_per_entry": (wal_after - wal_before) / rows,
        "bytes_per_seed": seeds / given.seeds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description="Measure many workers on one Postgres.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=5_500.0, help="entries per second of the second part")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        url, schedules = given.worker
        own = msgspec.json.decode(schedules, type=dict[str, Schedule])
        # As runs do if the extra is installed.
        anyio.run(live_all, url, own, backend_options={"use_uvloop": True})
        return 0
    with postgres_server(durable=True) as server:
        fastest = figures_of(server.new_database(), given, 0.0)
        paced = figures_of(server.new_database(), given, given.rate)
    print(f"{given.workers} workers in {given.processes} processes on one Postgres, {given.seconds:g} s each")
    print(f"{'':<34} {'fastest':>10} {given.rate:>8,.0f}/s")
    for name, figure in paced.items():
        print(f"{name.replace('_', ' '):<34} {fastest[name]:10,.1f} {figure:10,.1f}")
    least = min(LEAST_PER_SECOND, given.rate / 1.1)
    limits = {
        f"at least {least:,.0f} entries per second": paced["entries_per_second"] >= least,
        f"95 % of claims in less than {MOST_CLAIM_MS:g} ms": paced["claim_p95_ms"] < MOST_CLAIM_MS,
        "nothing lost": paced["lost"] == fastest["lost"] == 0,
    }
    for limit, held in limits.items():
        print(f"{limit:<45} {'ok' if held else 'MISSED'}")
    met = all(limits.values())
    parts = {
        part: {name: round(figure, 2) for name, figure in figures.items()}
        for part, figures in (("fastest", fastest), ("paced", paced))
    }
    print(
        msgspec.json.encode({"benchmark": "scaling", "met": met, "workers": given.workers, **parts}).decode()
    )
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
