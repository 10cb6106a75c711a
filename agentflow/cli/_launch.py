"""`agentflow launch`: a run on several workers of this machine, or on the machines of a cluster; a training on one of them."""

import argparse
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from agentflow._secrets import is_secret_name, mask_settings
from agentflow.cli._arguments import LAUNCHED
from agentflow.cli._display import RunView
from agentflow.cli._main import main, parse_command
from agentflow.cli._output import Exit
from agentflow.cli._program import watch_run
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.extras import missing_extra
from agentflow.launch import (
    LaunchedRuns,
    LaunchStatus,
    LocalWorkers,
    RayWorkers,
    WorkerCommand,
    WorkerEnd,
    render_job,
)
from agentflow.learner import load_train_config
from agentflow.rollouts import load_rollout_config
from agentflow.runs import Phase, RunConfig
from agentflow.synthesis import load_synthesis_config

if TYPE_CHECKING:
    from rich.table import Table

_CARRIED = re.compile(r"AGENTFLOW_\w+|OPENAI_\w+|SEEDS_FILE|OUTPUT_DIR|MODEL|\w+_API_KEY")
_CLUSTER = re.compile(r"auto|(ray://)?[^/\s]+:\d+")


class _Workers(Protocol):
    """Workers of any place."""

    @property
    def active(self) -> int:
        """Number of processes or machines at work."""
        ...

    def stop(self) -> None:
        """Stop all in order; called again, they do not wait for calls in flight."""
        ...

    async def run(self) -> Sequence[WorkerEnd]:
        """Run all to their ends."""
        ...


class _Launched(NamedTuple):
    """Runs that a command makes."""

    journal: str
    names: frozenset[str]
    """Names of the runs in the journal."""


def run_launch(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    words: list[str] = arguments.words
    if not words or words[0] not in LAUNCHED:
        raise ConfigurationError(f"launch: name one of {', '.join(LAUNCHED)} after the options")
    command = parse_command(words)
    if getattr(command, "print_config", False):
        return main(words)
    if command.command == "train":
        return _place_training(arguments, command)
    configs = _configs(command)
    if arguments.on in ("local", "k8s") and (arguments.working_dir or arguments.label):
        raise ConfigurationError("launch: --working-dir and --label are options of Ray clusters")
    if arguments.on == "k8s":
        return _print_job(arguments, command, configs[0])
    launched = _launched(configs)
    workers = _workers(arguments, words)
    status = _watch(arguments, _Launch(workers, LaunchedRuns(launched.journal, launched.names)))
    # Nothing is left to do, so the ordinary command writes the files from the journal and prints the report.
    return main(words) if status == Exit.DONE else status


def _watch(arguments: argparse.Namespace, launch: "_Launch") -> int:
    """Run a launch with a progress display and return the exit status."""
    start = {"on": arguments.on, "workers": arguments.workers, "command": arguments.words[0]}
    view = RunView(launch.status, start, _fields, _table)
    return watch_run(launch, launch.run, view, as_json=False, fields=dict, show=lambda: None)


def _place_training(arguments: argparse.Namespace, command: argparse.Namespace) -> int:
    """Run a training as one process on one machine of a Ray cluster."""
    if arguments.on in ("local", "k8s") or arguments.workers > 1:
        raise ConfigurationError(
            "launch: a training is one process on one machine of a Ray cluster; name the cluster, without --workers"
        )
    config = load_train_config(
        command.config, command.settings, {"backbone": command.backbone} if command.backbone else {}
    )
    if config.backbone == "debug":
        raise ConfigurationError(
            "launch: the backbone debug prints rollouts and trains nothing; run agentflow train"
        )
    if not config.output.is_absolute():
        raise ConfigurationError(
            "launch: the training may run on any machine; set output_dir to an absolute path that all of them see"
        )
    status = _watch(arguments, _Launch(_workers(arguments, arguments.words)))
    if status == Exit.DONE:
        sys.stdout.write(
            f"The training has ended. Its model, figures and checkpoints are in {config.output}.\n"
        )
    return status


def _configs(command: argparse.Namespace) -> Sequence[RunConfig]:
    """Read the settings of all runs of the command, before anything is begun."""
    if command.resume != "auto":
        raise ConfigurationError("launch: --resume can't be chosen; the same command resumes a launched run")
    if command.retry_failed:
        raise ConfigurationError(
            f"launch: run agentflow {command.command} --retry-failed in one process, then launch it again"
        )
    if command.command == "eval":
        from agentflow.cli._evaluate import evaluated_configs  # loads the benchmarks

        return evaluated_configs(command)
    if command.command == "rollout":
        return [load_rollout_config(command.config, command.settings)]
    config = load_synthesis_config(command.config, command.settings)
    if config.learner is not None:
        raise ConfigurationError(
            "launch: these settings have a learner, and a synthesis with one is not launched"
        )
    return [config]


def _launched(configs: Sequence[RunConfig]) -> _Launched:
    """Return the runs and the journal that they share."""
    journal = configs[0].journal or ""
    if not journal.startswith("postgres"):
        raise ConfigurationError(
            "launch: the workers need a journal that all of them reach; set journal=postgresql://user@host/database"
        )
    if find_spec("asyncpg") is None:
        raise ConfigurationError(missing_extra("journal: Postgres", "postgres"))
    return _Launched(journal, frozenset(config.run_name for config in configs))


def _print_job(arguments: argparse.Namespace, command: argparse.Namespace, config: RunConfig) -> int:
    """Print the manifests of the workers; the files that the settings name are part of them."""
    named: Sequence[str | None] = (
        command.config,
        getattr(command, "data", None),
        getattr(config, "seeds_file", None),
        getattr(config, "data_path", None),
    )
    files = dict.fromkeys(name for name in named if name and Path(name).is_file())
    words, _ = _worker_words(arguments.words)  # secrets come from the cluster's
    sys.stdout.write(
        render_job(
            words,
            workers=arguments.workers,
            image=arguments.image,
            secret=arguments.secret,
            files=list(files),
        )
    )
    return Exit.DONE


def _worker_words(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the arguments of a worker, and those with secrets as variables, which other users can't list."""
    # A fixed port of the control server would be taken by the first worker.
    plain, hidden = ["control=false"] if words[0] == "synth" else [], dict[str, str]()
    for word in reversed(words):
        name, equals, value = word.partition("=")
        secret = name == "journal" or is_secret_name(name) or mask_settings(value) != value
        if equals and secret and "${" not in value:
            hidden.setdefault(f"AGENTFLOW_{name.upper().replace('.', '__')}", value)
        elif word != "--json":
            plain.insert(0, word)
    return tuple(plain), hidden


def _workers(arguments: argparse.Namespace, words: Sequence[str]) -> _Workers:
    """Return the workers of the place that `--on` names."""
    plain, hidden = _worker_words(words)
    trains = words[0] == "train"
    if not trains:
        plain = (*plain, f"launch_id={secrets.token_hex(8)}")
    command = WorkerCommand(plain, os.getcwd(), tuple(hidden.items()), shares_journal=not trains)
    if arguments.on == "local":
        return LocalWorkers(command, arguments.workers)
    if not _CLUSTER.fullmatch(arguments.on):
        raise ConfigurationError(
            f"--on: {arguments.on} is no place; name local, k8s, auto, HOST:PORT or ray://HOST:PORT"
        )
    carried = {name: value for name, value in os.environ.items() if _CARRIED.fullmatch(name)}
    folder = None if arguments.working_dir else command.folder
    command = replace(command, folder=folder, environment=tuple({**carried, **hidden}.items()))
    return RayWorkers(
        arguments.on,
        command,
        arguments.workers,
        working_dir=_folder(arguments.working_dir),
        label=_label(arguments.label),
        max_machines=1 if trains else None,
    )


def _folder(path: str | None) -> str | None:
    if path is not None and not Path(path).is_dir():
        raise ConfigurationError(f"--working-dir: {path} is no folder")
    return path


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigurationError(f"--label: {text!r} is no label; write KEY=VALUE")
    return name, value


class _Progress(NamedTuple):
    """Progress of a launch at one moment."""

    phase: Phase
    seconds: float
    workers: int
    read: LaunchStatus


class _Launch:
    """Workers with the progress of their runs, if they share a journal."""

    def __init__(self, workers: _Workers, runs: LaunchedRuns | None = None) -> None:
        self._workers = workers
        self._runs = runs
        self._began = time.monotonic()
        self._phase = Phase.STARTING
        self._why: str | None = None

    def status(self) -> _Progress:
        """Return the current progress."""
        read = LaunchStatus() if self._runs is None else self._runs.status
        if self._runs is None:
            works, working = self._workers.active > 0, Phase.STEP
        else:
            works, working = read.total > 0, Phase.PAUSED if read.paused else Phase.GROWING
        phase = working if works and self._phase is Phase.STARTING else self._phase
        return _Progress(phase, time.monotonic() - self._began, self._workers.active, read)

    def stop(self, why: str = "it was asked to stop") -> None:
        """Stop all workers in order."""
        self._why = why
        self._phase = Phase.STOPPING
        self._workers.stop()

    def stop_now(self) -> None:
        """Do not wait for calls in flight."""
        self._workers.stop()

    async def run(self) -> None:
        """Run the workers to their ends.

        :raises AgentFlowError: if one has failed.
        :raises RunStopped: if work is left.
        """
        failed: AgentFlowError | None = None
        ends: Sequence[WorkerEnd] = ()
        async with anyio.create_task_group() as tasks:
            if self._runs is not None:
                tasks.start_soon(self._runs.follow)
            try:
                ends = await self._workers.run()
                if self._runs is not None:
                    with suppress(ConfigurationError):
                        await self._runs.read()  # what was finished since the last time
            except AgentFlowError as error:  # raised below: a task group would wrap it
                failed = error
            tasks.cancel_scope.cancel()
        self._phase = Phase.STOPPED
        if (error := failed or self._error(ends)) is not None:
            raise error
        self._phase = Phase.DONE

    def _error(self, ends: Sequence[WorkerEnd]) -> AgentFlowError | None:
        """Return the reason that work is left; `None` if a worker has found that none is."""
        if any(end.status == Exit.DONE for end in ends):
            return None
        for end in ends:
            if end.status == Exit.REFUSED:
                return ConfigurationError(end.message)
            if end.status == Exit.FAILED:
                return AgentFlowError(end.message)
        if self._why is not None:
            message = f"stopped: {self._why}; run the same command again to resume"
            return RunStopped(StopCause.INTERRUPTED, message)
        (stopped, *_) = ends
        cause = StopCause(stopped.cause) if stopped.cause else StopCause.INTERRUPTED
        return RunStopped(cause, stopped.message)


def _fields(status: _Progress) -> dict[str, object]:
    read = status.read
    return {
        "phase": status.phase.value,
        "done": read.done,
        "total": read.total,
        "workers": status.workers,
        "held_by_host": read.held,
        "done_by_host": read.finished,
        "seconds": round(status.seconds, 1),
    }


def _table(status: _Progress) -> "Table":
    from agentflow.runs import progress_table

    read = status.read
    hosts = ", ".join(f"{host}: {done}" for host, done in read.finished.items()) or "none yet"
    return progress_table(
        status.phase.value,
        read.total,
        read.done,
        finished=f"{read.done} of {read.total}",
        workers=str(status.workers),
        hosts=hosts,
    )
