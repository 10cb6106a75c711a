"""`agentflow ctl ACTION PLACE`: follows runs of any kind by their journals and files, and commands them by their journals."""

import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.to_thread

from agentflow._typeguards import is_object
from agentflow.cli._display import RunView, follow, speed_fields
from agentflow.cli._output import Exit, print_json
from agentflow.errors import ConfigurationError
from agentflow.inspection import RunCollection, RunKind, RunSummary, WorkState, open_runs
from agentflow.journal import NewSeed, open_journal
from agentflow.runs import (
    Phase,
    ThroughputMeter,
    failures_text,
    is_output_abandoned,
    is_output_active,
    one_line,
    speed_text,
    usage_text,
)
from agentflow.synthesis.pipeline import new_seeds
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from rich.table import Table

logger = get_logger(__name__)

POLL_SECONDS: Final = 1.0
"""Interval at which runs are read; longer if reading takes long."""
SETTLE_SECONDS: Final = 5.0
"""Time without an active run after which several runs have ended: the next one of an evaluation may be starting."""
PATIENCE_SECONDS: Final = 10.0
"""Time in which a command must reach a journal."""
_SHARE: Final = 4
_NAME_CHARS: Final = 60
_UNITS: Final[Mapping[RunKind, str]] = {RunKind.SYNTHESIS: "seeds", RunKind.ROLLOUT: "tasks"}
_IDLE: Final = (Phase.DONE, Phase.STOPPED)


class WatchedRun(NamedTuple):
    """A run at one moment."""

    summary: RunSummary
    phase: Phase
    killed: bool
    """It is unfinished, and its process did not end by itself."""
    done: int
    """Number of finished seeds, tasks or steps."""
    total: int | None
    """Number of all; `None`: determined by the tasks."""
    rate: float
    """Units finished per second; 0: none yet."""
    remaining: float | None
    """Estimated seconds to the end; `None`: unknown."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.summary.usage.values())

    @property
    def counted(self) -> str:
        """Its progress: `3 of 12 seeds`."""
        of = "" if self.total is None else f" of {self.total}"
        return f"{self.done}{of} {_UNITS.get(self.summary.kind, 'steps')}"

    def fields(self) -> dict[str, object]:
        """Return it as a record."""
        return {
            "run": self.summary.name,
            "kind": self.summary.kind.value,
            "phase": self.phase.value,
            "killed": self.killed,
            "done": self.done,
            "total": self.total,
            "used": self.tokens,
            "cost": None if self.summary.cost is None else round(self.summary.cost, 6),
            "failures": self.summary.failures,
            **({"hosts": self.hosts} if len(self.summary.hosts) > 1 else {}),
        }

    @property
    def hosts(self) -> dict[str, int]:
        """Numbers of finished seeds by host."""
        return {host: seeds.done for host, seeds in self.summary.hosts.items()}

    def end_line(self) -> str:
        """Return its end as one line."""
        summary = self.summary
        what = f"{self.counted} done, {usage_text(self.tokens, summary.cost)}"
        if summary.failures:
            what += f", failures: {failures_text(summary.failures)}"
        if summary.trouble:
            end = summary.trouble
        elif self.phase is Phase.DONE:
            end = f"done: {what}"
        elif self.killed:
            end = f"was killed or has crashed: {what}; run its command again to resume"
        elif summary.state is WorkState.WAITING:
            end = "has not begun; run its command"
        elif self.phase is Phase.STOPPED:
            end = f"was stopped: {what}; run its command again to resume"
        else:
            end = f"is active: {what}"
        return f"{one_line(summary.name, _NAME_CHARS)}: {end}"


class _WatchedRuns(NamedTuple):
    """All runs of a place at one moment."""

    phase: Phase
    seconds: float
    runs: list[WatchedRun]

    @property
    def active(self) -> list[WatchedRun]:
        """Runs with a living process."""
        return [run for run in self.runs if run.phase not in _IDLE]


def watch_place(location: str, *, journal: str = "", patience: float, as_json: bool) -> int:
    """Show the progress of the runs of a place until none is active, and return the exit status.

    :param location: output directory of a run, folder of several, journal file, or address of a database.
    :param journal: database that the settings of the runs may name.
    :param patience: seconds to wait for a restart of a run that was killed.
    :raises AgentFlowError: one line, if nothing can be read.
    """
    if not (math.isfinite(patience) and patience >= 0):
        raise ConfigurationError("--patience: give a number of seconds, 0 or more")
    with _open(location, journal) as runs:
        watch = _PlaceWatch(runs, location, patience, as_json=as_json)
        watch.read()
        return follow(watch, RunView(watch.status, {"watched": location}, _fields, _table), as_json=as_json)


def command_place(
    location: str,
    action: str,
    *,
    journal: str = "",
    run: str = "",
    seeds: Sequence[Mapping[str, object]] = (),
    origin: str = "",
) -> list[dict[str, object]]:
    """Write a command for all processes of a run into its journal; return the progress, or the new seeds.

    :param action: `status`, `pause`, `resume`, `stop` or `add`.
    :param journal: database that the settings of the runs may name.
    :param run: name of the run, or of an evaluation, if the journal has several unfinished ones.
    :param origin: name of the list of seeds.
    :raises AgentFlowError: one line, if there is no such run.
    """
    added = new_seeds(seeds)
    with open_runs(location, journal=journal) as runs:
        watch = _PlaceWatch(runs, location, 0.0, as_json=False)
        watch.read()
        chosen = _chosen(watch.status().runs, action, run)
        commanded = [] if action == "status" else [_journal_of(runs, watched_run) for watched_run in chosen]
        if action == "add":
            return [anyio.run(_add, *commanded[0], added, origin, chosen[0].summary.state)]
        for url, name in commanded:
            anyio.run(_write, url, name, action)
        watch.read()
        ids = {watched_run.summary.id for watched_run in chosen}
        chosen_runs = [watched_run for watched_run in watch.status().runs if watched_run.summary.id in ids]
        return [{**watched_run.fields(), "note": _note(watched_run, action)} for watched_run in chosen_runs]


def _note(run: WatchedRun, action: str) -> str:
    """Return how the processes of a run obey a command, and the pause that it has."""
    works = run.summary.state is WorkState.RUNNING
    if run.summary.paused:
        obey = "within a second each process begins nothing new; its calls in flight still complete and are recorded"
        return (
            f"paused: {obey}"
            if works
            else "paused: no process works on it; one that is started waits for resume"
        )
    if action == "stop" and works:
        return "within a second each process begins to end; calls in flight get ten seconds"
    return "" if works or action == "status" else "no process works on it"


def _chosen(runs: list[WatchedRun], action: str, name: str) -> list[WatchedRun]:
    """Return the runs that a command is for: the only unfinished one, or those of an evaluation.

    :raises ConfigurationError: one line, if there is none, or there are several and none was named.
    """
    names = _names(runs) or "none"
    if name:
        runs = [run for run in runs if f"{run.summary.name}/".startswith(f"{name}/")]
    if not runs:
        raise ConfigurationError(f"{action}: the journal has no run{name and f' {name}'}; its runs: {names}")
    unfinished = [run for run in runs if run.summary.state is not WorkState.DONE]
    if action == "status":
        return unfinished or runs
    if not unfinished:
        raise ConfigurationError(f"{action}: {_names(runs)} has ended")
    if len({run.summary.name.partition("/")[0] for run in unfinished}) > 1:
        raise ConfigurationError(f"{action}: name one of these runs with --run: {_names(unfinished)}")
    if action == "add" and (len(unfinished) > 1 or unfinished[0].summary.kind is not RunKind.SYNTHESIS):
        raise ConfigurationError(f"add: {_names(unfinished)} is no synthesis, which alone takes seeds")
    return unfinished


def _names(runs: Sequence[WatchedRun]) -> str:
    return ", ".join(one_line(run.summary.name, _NAME_CHARS) for run in runs)


def _journal_of(runs: RunCollection, run: WatchedRun) -> tuple[str | Path, str]:
    journal = runs.journal_of(run.summary.id)
    if journal is None:
        raise ConfigurationError(
            f"{_names([run])}: takes no commands; it is a training, or was begun by an earlier version of agentflow"
        )
    return journal


async def _write(url: str | Path, name: str, action: str) -> None:
    async with open_journal(url, patience=PATIENCE_SECONDS) as journal:
        if action == "stop":
            await journal.stop_run(name)
        else:
            await journal.pause_run(name, paused=action == "pause")


async def _add(
    url: str | Path, name: str, seeds: Sequence[NewSeed], origin: str, state: WorkState
) -> dict[str, object]:
    origin = f"control/{origin or secrets.token_hex(4)}"
    async with open_journal(url, patience=PATIENCE_SECONDS) as journal:
        added = await journal.add_seeds(name, seeds, origin)
    idle = state is not WorkState.RUNNING
    note = "No process works on the run; start it again to grow them." if idle else ""
    return {"ids": [seed.id for seed in added], "origin": origin, "note": note}


def _open(location: str, journal: str) -> RunCollection:
    """Open the runs; a run that is just starting is waited for."""
    while True:
        try:
            return open_runs(location, journal=journal)
        except ConfigurationError:
            if "://" in location or not is_output_active(Path(location)):
                raise
        time.sleep(POLL_SECONDS)


class _PlaceWatch:
    """Progress of the runs of a place, read again and again."""

    def __init__(self, runs: RunCollection, location: str, patience: float, *, as_json: bool) -> None:
        self._collection = runs
        self._output_folder = Path(location) if "://" not in location else None
        self._patience = patience
        self._as_json = as_json
        self._began = time.monotonic()
        self._runs: dict[str, WatchedRun] = {}
        self._meters: dict[str, ThroughputMeter] = {}
        self._seen: set[str] = set()
        self._printed: dict[str, dict[str, object]] = {}

    def status(self) -> _WatchedRuns:
        """Return what was read last."""
        runs = list(self._runs.values())
        phases = {run.phase for run in runs}
        several = Phase.GROWING if phases - set(_IDLE) else Phase.STOPPED
        phase = phases.pop() if len(phases) == 1 else several
        return _WatchedRuns(phase, time.monotonic() - self._began, runs)

    def exit(self) -> Exit:
        """Return the exit status: that of the runs that were active, or of all if none was."""
        runs = [run for id, run in self._runs.items() if not self._seen or id in self._seen]
        if any(run.killed for run in runs):
            return Exit.FAILED
        return Exit.DONE if all(run.phase is Phase.DONE for run in runs) else Exit.STOPPED

    def print_end(self) -> None:
        """Print a line about each run on stdout."""
        for run in self._runs.values():
            sys.stdout.write(f"{run.end_line()}\n")

    async def read_until_end(self) -> None:
        """Read until no run is active.

        :raises AgentFlowError: one line, if nothing can be read any more.
        """
        quiet_since = broken_since = None
        while True:
            started = time.monotonic()
            try:
                await anyio.to_thread.run_sync(self.read)
                broken_since = None
            except ConfigurationError as error:
                if broken_since is None:
                    logger.warning("can't be read; trying again", reason=str(error))
                broken_since = broken_since or started
                if started - broken_since >= self._patience:
                    raise
            if self._as_json:
                self._print_changes()
            if self.status().active or broken_since is not None:
                quiet_since = None
            else:
                quiet_since = quiet_since or started
                if started - quiet_since >= self._wait_seconds():
                    return
            await anyio.sleep(max(POLL_SECONDS, _SHARE * (time.monotonic() - started)))

    def _wait_seconds(self) -> float:
        """Return how long nothing may be active before the runs have ended."""
        runs = self._runs
        if any(runs[id].killed for id in self._seen):
            return self._patience
        has_folder = len(runs) == 1 and self._output_folder is not None
        if has_folder and all(run.summary.folder == str(self._output_folder) for run in runs.values()):
            return 0.0  # its lock tells
        finished = all(run.phase is Phase.DONE for run in runs.values())
        return 0.0 if finished and not self._seen else SETTLE_SECONDS

    def read(self) -> None:
        """Read all runs."""
        for summary in self._collection.runs():
            run = self._runs[summary.id] = self._watched(summary)
            if run.phase not in _IDLE:
                self._seen.add(summary.id)

    def _watched(self, summary: RunSummary) -> WatchedRun:
        done, total = _progress(summary)
        meter = self._meters.setdefault(summary.id, ThroughputMeter(time.monotonic))
        meter.start(done)
        meter.record(done)
        phase, killed = self._phase(summary)
        left = None if total is None or phase in _IDLE else max(0, total - done)
        remaining = None if left is None else meter.remaining(left, summary.seeds.running)
        return WatchedRun(summary, phase, killed, done, total, meter.rate, remaining)

    def _phase(self, summary: RunSummary) -> tuple[Phase, bool]:
        """Return the phase of a run, and whether it was killed."""
        folder = Path(summary.folder) if summary.folder else None
        if summary.state is WorkState.RUNNING:
            return Phase.PAUSED if summary.paused else Phase.GROWING, False
        if folder is not None and is_output_active(folder):
            if summary.state is WorkState.DONE:
                return Phase.WRITING, False
            return Phase.STOPPING if summary.id in self._seen else Phase.STARTING, False
        if summary.seeds.running or (folder is not None and is_output_abandoned(folder)):
            return Phase.STOPPED, True
        return Phase.DONE if summary.state is WorkState.DONE else Phase.STOPPED, False

    def _print_changes(self) -> None:
        """Print a line of JSON for each run that has changed."""
        for id, run in self._runs.items():
            fields = run.fields()
            if fields != self._printed.get(id):
                self._printed[id] = fields
                print_json({**fields, **speed_fields(run.rate, run.remaining)})
        sys.stdout.flush()


def _progress(summary: RunSummary) -> tuple[int, int | None]:
    """Return the number of finished units of a run, and of all."""
    if summary.kind in _UNITS:
        return summary.seeds.done, summary.seeds.total
    schedule: object = summary.settings.get("schedule")
    steps = schedule.get("steps") if is_object(schedule) else None
    return summary.steps, steps if isinstance(steps, int) else None


def _fields(status: _WatchedRuns) -> dict[str, object]:
    if len(status.runs) == 1:
        (run,) = status.runs
        speed = speed_fields(run.rate, run.remaining)
        return {**run.fields(), **speed, "seconds": round(status.seconds, 1)}
    costs = [run.summary.cost for run in status.runs if run.summary.cost is not None]
    return {
        "phase": status.phase.value,
        "runs": len(status.runs),
        "in_work": [f"{run.summary.name}: {run.counted}{_speed(run)}" for run in status.active],
        "used": sum(run.tokens for run in status.runs),
        "cost": round(sum(costs), 6) if costs else None,
        "failures": _failures(status.runs),
        "seconds": round(status.seconds, 1),
    }


def _table(status: _WatchedRuns) -> "Table":
    from agentflow.runs import progress_table

    if len(status.runs) == 1:
        (run,) = status.runs
        unit = _UNITS.get(run.summary.kind, "steps")
        rows = {
            unit: f"{run.counted} done",
            "speed": speed_text(run.rate, run.remaining),
            "model": usage_text(run.tokens, run.summary.cost),
            "failures": failures_text(run.summary.failures),
        }
        if len(run.hosts) > 1:
            rows["hosts"] = ", ".join(f"{host}: {done}" for host, done in run.hosts.items())
        return progress_table(run.phase.value, run.total or 0, run.done, **rows)
    active = status.active
    cost = sum(run.summary.cost or 0.0 for run in status.runs)
    table = progress_table(
        status.phase.value,
        len(status.runs),
        len(status.runs) - len(active),
        runs=f"{len(active)} of {len(status.runs)} active",
        model=usage_text(sum(run.tokens for run in status.runs), cost),
        failures=failures_text(_failures(status.runs)),
    )
    for run in active:
        table.add_row(one_line(run.summary.name, _NAME_CHARS), f"{run.counted}{_speed(run)}")
    return table


def _speed(run: WatchedRun) -> str:
    return f", {speed_text(run.rate, run.remaining)}"


def _failures(runs: list[WatchedRun]) -> dict[str, int]:
    failures = Counter[str]()
    for run in runs:
        failures.update(run.summary.failures)
    return dict(failures.most_common())
