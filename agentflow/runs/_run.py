"""Base class of runs: their supervision tree, resources, seed scheduler and controls."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Generic, ParamSpec, TypeVar

import anyio
from anyio import CancelScope, RunFinishedError
from anyio.from_thread import run_sync as run_in_loop
from anyio.lowlevel import EventLoopToken, current_token
from anyio.to_thread import run_sync as run_in_thread

from agentflow.actors import ChildInfo, ChildSpec, Restart, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause, ToolFailure
from agentflow.journal import NewSeed, Run, RunCommands, open_journal
from agentflow.models import Accounts, Model, ModelSettings, OpenModel, Statistics, make_model
from agentflow.runs._config import RunConfig
from agentflow.runs._directory import Resume, RunDirectory, write_report_page
from agentflow.runs._progress import Phase, RunProgress
from agentflow.runs._resources import (
    RUN_MODELS,
    AnswerGuard,
    PromptStore,
    PromptStoringModel,
    models_of,
    open_accounts,
    open_models,
    open_supervised,
    share_accounts,
    start_child,
)
from agentflow.runs._seed_scheduler import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    PauseGate,
    RunShutdown,
    SeedScheduler,
    SeedWorker,
)
from agentflow.runs._tools import (
    RUN_START,
    ChosenTools,
    check_records,
    choose_tools,
    input_lines,
    sandbox_settings,
    start_of,
)
from agentflow.sandbox import Backend, Sandbox, SandboxSettings
from agentflow.telemetry import RunTrace, flush_tracing, get_logger, silent_spans, start_tracing
from agentflow.trace import Blob, Seed, digest

logger = get_logger(__name__)


C = TypeVar("C", bound=RunConfig)


P = TypeVar("P", bound=RunProgress)


A = ParamSpec("A")


T = TypeVar("T")


class SupervisedRun(Generic[C, P]):
    """A run that works through seeds of a journal, with everything it needs opened under one supervisor.

    A subclass implements `_execute`, which calls `_open_tools`, `_open_run`, `_open_models` and `_schedule` in this order.
    An instance runs once.
    """

    unit = "seed"
    """Name of a seed in messages."""

    def __init__(
        self,
        config: C,
        progress: P,
        *,
        name: str,
        output_dir: Path | None = None,
        resume: Resume = "auto",
        retry_failed: bool = False,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """:param name: name of its supervisor.
        :param output_dir: output directory, instead of that of the settings.
        :param resume: handling of an existing run.
        :param retry_failed: work again on finished seeds that failed for a reason that may pass.
        :param grace_seconds: time that effects in flight get when the run is stopped.
        """
        self.config = config
        """Its settings."""
        self.directory = RunDirectory(config, output_dir or config.output, resume)
        """Its output directory."""
        self.chosen = ChosenTools([], {})
        """The tools that it may use, once they are known."""
        self.nothing_to_do = False
        """Every seed was already finished when it began."""
        self.notes: list[str] = []
        """Lines about its input: the corpus, skipped files, ignored arguments."""
        self._retry_failed = retry_failed
        self._progress = progress
        self._grace_seconds = grace_seconds
        self._with_page = True
        self._gate = PauseGate()
        self._applied = ("resume", 0)
        self._priced: Mapping[str, ModelSettings] = {}
        self._shutdown = RunShutdown()
        self._name = name
        self._agent = "team"
        self._supervisor = Supervisor(name=name, intensity=3, period=60)
        self._run: Run | None = None
        self._scheduler: SeedScheduler | None = None

    def pause(self) -> None:
        """Begin no new effect; effects in flight complete."""
        if self._progress.phase is Phase.GROWING:
            self._gate.close()
            self._progress.phase = Phase.PAUSED

    async def wait_for_phase_after(self, phase: str) -> None:
        """Wait until the phase of the run is another one."""
        await self._progress.wait_for_phase_after(phase)

    async def wait_idle(self) -> None:
        """Wait until no effect is in flight. While the run is paused, nothing happens after this."""
        await self._gate.wait_idle()

    def resume(self) -> None:
        """Continue after a pause."""
        if self._progress.phase is Phase.PAUSED:
            self._progress.phase = Phase.GROWING
            self._gate.open()
            self._wake()

    def stop(self, why: str = "it was asked to stop") -> None:
        """End early and keep everything; effects in flight may complete. Does nothing once all seeds are finished."""
        if self._progress.phase in (Phase.WRITING, Phase.DONE):
            return
        message = f"stopped: {why}; run the same command again to resume"
        self._shutdown.request(RunStopped(StopCause.INTERRUPTED, message))

    def stop_now(self) -> None:
        """Do not wait for effects in flight."""
        self._shutdown.immediate.set()

    def _apply_commands(self, commands: RunCommands) -> None:
        """Apply the commands of the journal; a pause that was asked for elsewhere remains."""
        command = "stop" if commands.stopped else "pause" if commands.paused else "resume"
        before, self._applied = self._applied, (command, self._gate.in_flight if commands.paused else 0)
        if before != self._applied:
            logger.warning("agentflow ctl", command=command, in_flight=self._gate.in_flight)
        if command == before[0]:
            return
        match command:
            case "stop":
                self.stop("requested by agentflow ctl")
            case "pause":
                self.pause()
            case _:
                self.resume()

    async def add_seeds(self, seeds: Sequence[NewSeed], origin: str) -> tuple[list[Seed], bool]:
        """Add seeds to the active run; they are in the journal when this returns.

        :param origin: name of the list: adding the same list again adds nothing.
        :return: the seeds, and `True` if this process still works on them.
        :raises ConfigurationError: if one can't be used.
        """
        if self._run is None:
            raise ConfigurationError("the run has not begun; try again in a moment")
        added = await self._run.add_seeds(seeds, origin)
        counts = await self._run.counts()
        self._progress.seeds = sum(counts)
        self._wake()
        return added, not self._shutdown.no_more_claims

    def actors(self) -> list[ChildInfo]:
        """Return the supervised actors of the run, in start order."""
        return self._supervisor.which_children()

    def calls(self) -> list[Statistics]:
        """Return the calls of each model."""
        return [model.statistics() for model in self._progress.models]

    def _wake(self) -> None:
        if self._scheduler is not None:
            self._scheduler.wake()

    async def _supervise(self, execute: Callable[[], Awaitable[None]]) -> None:
        """Execute the run under its supervisor.

        :raises RunStopped: if it ended early.
        """
        try:
            start_tracing(self.config.tracing)
            # Before anything is opened; a new directory is locked when it is made.
            self.directory.lock()
            with infrequent_gc():
                async with self._supervisor:
                    await execute()
        except RunStopped as stopped:
            self._shutdown.request(stopped)
        finally:
            self.directory.unlock()
            await flush_spans()
        if self._run is not None and self._with_page and not self._shutdown.immediate.is_set():
            shared = (self.config.journal, self.config.run_name) if self.config.journal else ()
            await write_report_page(self.directory.folder, *shared)
        if self._shutdown.reason is not None:
            self._progress.phase = Phase.STOPPED
            raise self._shutdown.reason
        self._progress.phase = Phase.DONE

    async def _open_tools(
        self, backends: Callable[[SandboxSettings], Sequence[str | Backend] | None] = lambda _: None
    ) -> Sandbox:
        """Open the sandbox and choose the tools.

        :param backends: returns the backends of the sandbox, instead of those of its settings.
        """
        settings, broken = sandbox_settings(self.config)
        opens = partial(Sandbox, settings, backends=backends(settings))
        try:
            sandbox = await open_supervised(self._supervisor, "servers", opens)
        except ToolFailure as failure:
            raise ConfigurationError(f"sandbox: {failure.message}") from None
        with silent_spans():
            chosen = await choose_tools(sandbox, self.config, broken)
        self.chosen = chosen._replace(inputs=input_lines(settings))
        self._note(self.chosen.corpus)
        return sandbox

    def _note(self, line: str) -> None:
        """Keep a line about the input for the report, and log it."""
        if line:
            self.notes.append(line)
            logger.info("input", note=line)

    async def _open_run(
        self,
        seeds: Sequence[NewSeed],
        blobs: Mapping[Blob, bytes] | None = None,
        *,
        further: bool = False,
        **identity: object,
    ) -> Run:
        """Open the run in its journal and add its seeds.

        :param blobs: pictures of the seeds.
        :param further: add seeds of another list than before, instead of refusing it.
        :param identity: what decides the content of the files, beside the settings and tools.
        """
        self.directory.prepare()
        opens = partial(open_journal, self.directory.journal, hosted=False)
        journal = await open_supervised(self._supervisor, "journal", opens)
        await start_child(self._supervisor, journal.writer_spec())
        tools = [tool.name for tool in self.chosen.tools]
        whole = {**self.config.identity(), **identity, "tools": tools}
        run = self._run = await journal.open_run(
            self.config.run_name,
            whole,
            lease_seconds=LEASE_SECONDS,
            host=self.config.host_name,
            launch=self.config.launch_id,
        )
        counts = await run.counts()
        self.directory.check(sum(counts) > 0)
        start = await run.keep(RUN_START, start_of(self._name, self.chosen))
        if counts.waiting or counts.leased or self._retry_failed or len(seeds) > sum(counts) > 0:
            check_records(start)
        for blob, data in (blobs or {}).items():
            await run.blobs.put(data, blob.mime)
        await run.add_seeds(seeds, further=further)
        if self._retry_failed:
            await self._reopen_failed(run)
        self.directory.write_settings()
        counts = await run.counts()
        self._progress.seeds, self._progress.done = sum(counts), counts.done
        self.nothing_to_do = not (counts.waiting or counts.leased)
        return run

    def _failed_seeds(self, run: Run) -> AsyncIterator[tuple[Seed, Sequence[str]]]:
        """Yield the finished seeds that failed for a reason that may pass, each with the keys to keep of its page."""
        raise NotImplementedError

    async def _reopen_failed(self, run: Run) -> None:
        failed = [seed async for seed in self._failed_seeds(run)]
        for seed, kept in failed:
            await run.reopen(seed, kept)
        units = self.unit if len(failed) == 1 else f"{self.unit}s"
        self._note(f"{len(failed) or 'no'} failed {units} tried again")

    def _answer_guard(self) -> AnswerGuard:
        """Return the guard against models without usable answers; the models are open."""
        assert self._progress.accounts is not None, "the models are open"
        return AnswerGuard(self._priced, self._progress.accounts.answered, self.unit)

    async def _open_models(self, run: Run, models: Mapping[str, ModelSettings]) -> dict[str, Model]:
        """Open the models of all roles with the budgets of the run; their prompts are stored if the settings want it."""
        await run.keep(RUN_MODELS, models_of(models))
        self._priced = models
        accounts = self._progress.accounts = await open_accounts(run, self.config, models)
        opened = await open_models(self._supervisor, models, accounts, run)
        self._progress.models = list(dict.fromkeys(opened.values()))
        if not self.config.save_prompts:
            return {**opened}
        prompts = PromptStore(run)
        return {role: PromptStoringModel(model, prompts) for role, model in opened.items()}

    async def _schedule(self, run: Run, worker: SeedWorker, *, concurrency: int) -> None:
        """Work on all seeds; returns when none is left or the run was stopped."""
        accounts = self._progress.accounts
        assert accounts is not None, "the models are open"

        async def save_usage() -> None:
            await share_accounts(run, accounts, self._priced)
            await run.save_failures(self._progress.failure_counts())

        def make() -> SeedScheduler:
            self._scheduler = SeedScheduler(
                journal=run,
                worker=worker,
                concurrency=concurrency,
                gate=self._gate,
                shutdown=self._shutdown,
                progress=self._progress,
                trace=trace,
                agent=self._agent,
                grace_seconds=self._grace_seconds,
                save_usage=save_usage,
                apply_commands=self._apply_commands,
            )
            return self._scheduler

        self._progress.phase = Phase.GROWING
        spec = ChildSpec(id="seed scheduler", start=make, restart=Restart.TRANSIENT)
        with RunTrace(self._name, run.key) as trace:
            await start_child(self._supervisor, spec)
            await self._shutdown.finished.wait()
        await self._count_left(run)

    async def _count_left(self, run: Run) -> None:
        """Add the number of unfinished seeds to the reason of an early end by a model."""
        reason, postponed = self._shutdown.reason, self._shutdown.postponed
        if reason is None and postponed is not None:
            reason = RunStopped(postponed.cause, f"{postponed.message}; run the same command again to retry")
        if not isinstance(reason, RunStopped) or reason.cause not in (StopCause.MODEL, StopCause.SCORING):
            return
        counts = await run.counts()
        self._progress.seeds, self._progress.done = sum(counts), counts.done
        # None is left if another process has finished those that were postponed here.
        if left := counts.waiting + counts.leased:
            units = self.unit if sum(counts) == 1 else f"{self.unit}s"
            message = f"{left} of {sum(counts)} {units} {'is' if left == 1 else 'are'} left: {reason.message}"
            self._shutdown.reason = RunStopped(reason.cause, message)


def check_models(config: RunConfig, models: Mapping[str, ModelSettings]) -> dict[str, OpenModel]:
    """Check the settings of all models, without opening them, before anything is begun.

    :raises ConfigurationError: if one can't be used, as for a missing key.
    """
    accounts = Accounts(max_cost=config.max_cost)
    return {role: make_model(settings, accounts) for role, settings in models.items()}


def run_sync(work: Callable[A, Awaitable[T]], *arguments: A.args, **named: A.kwargs) -> T:
    """Run it in an event loop in a thread and return its result; works inside a running loop, as in a notebook.

    An interrupt cancels the work at any moment, and propagates once it is cleaned up.
    """
    loop = _OwnLoop(partial(work, *arguments, **named))
    thread = Thread(target=loop.run, name="agentflow-run")
    try:
        thread.start()
        return loop.result.result()
    except BaseException:
        loop.cancel()
        # A thread that has not begun yet finds that it is cancelled.
        if thread.is_alive():
            thread.join()
        raise


def run_in_place(work: Callable[[], Awaitable[T]]) -> T:
    """As `run_sync`, but in this thread, so that breakpoints work; only inside a running loop in another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work)
    return run_sync(work)


class _OwnLoop(Generic[T]):
    """An event loop in a thread, whose work can be cancelled before it begins. (A portal of anyio that is interrupted while it
    starts waits forever.)
    """

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.result = Future[T]()
        self._work = work
        self._lock = Lock()
        self._cancelled = False
        self._running: tuple[EventLoopToken, CancelScope] | None = None

    def run(self) -> None:
        """Do the work; called in the thread."""
        try:
            self.result.set_result(anyio.run(self._main))
        except BaseException as error:  # raised in the thread that waits
            self.result.set_exception(error)

    def cancel(self) -> None:
        """Cancel the work; called in another thread."""
        with self._lock:
            self._cancelled = True
            running = self._running
        if running is not None:
            token, scope = running
            # The work may be over, and the loop with it.
            with suppress(RunFinishedError):
                run_in_loop(scope.cancel, token=token)

    async def _main(self) -> T:
        with CancelScope() as scope:
            with self._lock:
                self._running = current_token(), scope
                if self._cancelled:
                    scope.cancel()
            return await self._work()
        raise CancelledError


@asynccontextmanager
async def traced_run(name: str, folder: Path, tracing: bool | str | None) -> AsyncGenerator[None]:
    """Trace a run that works without seeds of a journal, and send what is queued at its end. See docs/tracing.md.

    :param folder: its folder, from which the ids of its traces follow.
    :param tracing: the setting of that name.
    """
    start_tracing(tracing)
    try:
        with RunTrace(name, _key_of(folder)):
            yield
    finally:
        await flush_spans()


def _key_of(folder: Path) -> str:
    return digest(str(folder.resolve()))


async def flush_spans() -> None:
    """Send what is queued of the trace, also when the run is cancelled. See docs/tracing.md."""
    with CancelScope(shield=True):
        await run_in_thread(flush_tracing)


YOUNG = 200_000
"""Allocation threshold of the youngest generation during a run. A tree has about 10,000 objects while it grows and few
afterwards: scanning them on the way costs 10 % of all CPU time, and 25 % with Python's default of 700."""


class _Collector:
    """Collector settings of this process, shared by all of its runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs = 0
        self._before = gc.get_threshold()
        self._left = 0

    def begin(self) -> None:
        """Change the collector when the first run begins."""
        with self._lock:
            self._runs += 1
            if self._runs > 1:
                return
            self._before = gc.get_threshold()
            if self._left > YOUNG:
                # Garbage of earlier runs would be frozen and never be collected.
                gc.collect()
                self._left = 0
            gc.freeze()
            gc.set_threshold(YOUNG, 10, 10)

    def end(self) -> None:
        """Restore the collector when the last run ends."""
        with self._lock:
            self._runs -= 1
            if self._runs:
                return
            # Objects from before the run are frozen and not counted.
            self._left += sum(len(gc.get_objects(generation)) for generation in range(3))
            # Move survivors to the oldest generation, or the next allocation would trigger a scan of all of them.
            gc.freeze()
            gc.set_threshold(*self._before)
            gc.unfreeze()


_collector = _Collector()


@contextmanager
def infrequent_gc() -> Generator[None]:
    """Collect garbage rarely, and exclude existing objects: a run makes few cycles and keeps many objects for long."""
    _collector.begin()
    try:
        yield
    finally:
        _collector.end()
