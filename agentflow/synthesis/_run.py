"""One invocation: the supervision tree, and what happens in it."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause, ToolFailure
from agentflow.growth import Greenhouse, Grower
from agentflow.journal import NewSeed, Run, open_journal, this_process
from agentflow.models import Accounts, ModelSettings, make_model
from agentflow.runs import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    ChosenTools,
    Ending,
    Field,
    Gate,
    Phase,
    Place,
    Resume,
    choose_tools,
    hold,
    open_accounts,
    open_models,
    sandbox_settings,
    seldom_collected,
    start,
)
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._control import ControlServer
from agentflow.synthesis._files import write_files
from agentflow.synthesis._harvest import Harvest
from agentflow.synthesis._questions import harvest
from agentflow.synthesis._report import Report
from agentflow.synthesis._run_gate import Gated
from agentflow.synthesis._run_progress import Progress, Standing
from agentflow.team import Team
from agentflow.telemetry import get_logger
from agentflow.trajectory import Seed

__all__ = ["SynthesisRun"]

logger = get_logger(__name__)

OPEN_TREES = 64
"""Trees at once where nothing has state."""


class SynthesisRun:
    """A run, from its settings to its files. It lives once: `run` does it, everything else is for those who watch."""

    def __init__(
        self,
        config: SynthesisConfig,
        output_dir: Path | None = None,
        *,
        resume: Resume = "auto",
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe it.

        :param output_dir: where its files go, if not where the settings say.
        :param resume: whether a run that exists is gone on with.
        :param grace_seconds: how long what is in flight may take when the run is to end early.
        :param clock: seconds that only grow.
        :raises ConfigurationError: if its trees are to be trained on, which it does not do.
        """
        if config.learner is not None:
            raise ConfigurationError(
                "learner: no questions are written then; start it as python -m agentflow.supervisor, or leave it out"
            )
        self.config = config
        """Its settings."""
        self.place = Place(config, output_dir or config.output, resume)
        """Where it lies on disk."""
        self.chosen = ChosenTools([], {})
        """The tools that it may use, once it has begun."""
        self.report: Report | None = None
        """What it gave, once its files are written; also if it was stopped."""
        self.found_nothing_to_do = False
        """Every seed was finished already."""
        self._grace_seconds = grace_seconds
        self._progress = Progress(clock)
        self._gate = Gate()
        self._ending = Ending()
        self._house = Supervisor(name="synthesis", intensity=3, period=60)
        self._run: Run | None = None
        self._field: Field | None = None

    async def run(self, seeds: Sequence[NewSeed]) -> Report:
        """Grow every seed that is not finished, write the files; what they hold, in short.

        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early. The files hold what is finished; the same again goes on.
        """
        try:
            with seldom_collected():
                async with self._house:
                    await self._do(seeds)
        except RunStopped as stopped:
            self._ending.stop(stopped)
        if self._ending.stopped is not None:
            self._progress.phase = Phase.STOPPED
            raise self._ending.stopped
        self._progress.phase = Phase.DONE
        assert self.report is not None, "a run that was not stopped has written its files"
        return self.report

    def standing(self) -> Standing:
        """How far it is."""
        return self._progress.standing()

    def pause(self) -> None:
        """Begin nothing new; what is in flight ends."""
        if self._progress.phase is Phase.GROWING:
            self._gate.shut()
            self._progress.phase = Phase.PAUSED

    async def still(self) -> None:
        """Wait until nothing is in flight. In a pause nothing happens then, until it goes on."""
        await self._gate.still()

    def resume(self) -> None:
        """Go on after a pause."""
        if self._progress.phase is Phase.PAUSED:
            self._progress.phase = Phase.GROWING
            self._gate.open()
            self._look()

    def stop(self, why: str = "it was asked to stop") -> None:
        """End early: what is in flight may end, everything is kept. Once all is done there is nothing to stop."""
        if self._progress.phase in (Phase.WRITING, Phase.DONE):
            return
        message = f"stopped: {why}; run the same again to go on"
        self._ending.stop(RunStopped(StopCause.INTERRUPTED, message))

    def hurry(self) -> None:
        """Do not wait for what is in flight."""
        self._ending.hurry.set()

    async def add_seeds(self, seeds: Sequence[NewSeed], origin: str) -> tuple[list[Seed], bool]:
        """Add seeds while it runs; they are in the journal when this returns, with whether this process grows them.

        :param origin: a name for the list: the same list again adds nothing.
        :raises ConfigurationError: if one can't be used.
        """
        if self._run is None:
            raise ConfigurationError("the run has not begun; try again in a moment")
        added = await self._run.add_seeds(seeds, origin)
        counts = await self._run.counts()
        self._progress.seeds = sum(counts)
        self._look()
        return added, not self._ending.over

    def _look(self) -> None:
        if self._field is not None:
            self._field.look()

    async def _do(self, seeds: Sequence[NewSeed]) -> None:
        self._check_models()
        settings, broken = sandbox_settings(self.config)
        sandbox = await self._open_sandbox(settings)
        self.chosen = await choose_tools(sandbox, self.config, broken)
        run = self._run = await self._open_run(seeds)
        counts = await run.counts()
        self._progress.seeds, self._progress.done = sum(counts), counts.done
        self.found_nothing_to_do = not (counts.waiting or counts.leased)
        if not self.found_nothing_to_do:
            await self._work(run, sandbox)
        if self._ending.hurry.is_set():
            return
        self._progress.phase = Phase.WRITING
        dropped = self.chosen.dropped
        self.report = await write_files(_harvests(run), self.place.folder, self.config, dropped_tools=dropped)

    def _check_models(self) -> None:
        """Before anything is begun: a key that is missing."""
        accounts = Accounts(max_cost=self.config.max_cost)
        for settings in self._models.values():
            make_model(settings, accounts)

    @property
    def _models(self) -> dict[str, ModelSettings]:
        """The models of the roles that ask one."""
        roles = ["planner", "generator", *(("verifier",) if self.config.verifier == "model" else ())]
        return {role: self.config.model_for(role) for role in roles}

    async def _open_sandbox(self, settings: SandboxSettings) -> Sandbox:
        try:
            return await hold(self._house, "servers", partial(Sandbox, settings))
        except ToolFailure as failure:
            raise ConfigurationError(f"sandbox: {failure.message}") from None

    async def _open_run(self, seeds: Sequence[NewSeed]) -> Run:
        self.place.prepare()
        opens = partial(open_journal, self.place.journal, hosted=False)
        journal = await hold(self._house, "journal", opens)
        await start(self._house, journal.writer_spec())
        tools = [tool.name for tool in self.chosen.tools]
        identity = {**self.config.identity(), "tools": tools}
        run = await journal.open_run(self.config.run_name, identity, lease_seconds=LEASE_SECONDS)
        self.place.check(sum(await run.counts()) > 0)
        await run.add_seeds(seeds)
        self.place.describe()
        return run

    async def _work(self, run: Run, sandbox: Sandbox) -> None:
        accounts = self._progress.accounts = await open_accounts(run, self.config, self._models)
        models = await open_models(self._house, self._models, accounts)
        self._progress.models = list(dict.fromkeys(models.values()))
        team = Team(
            planner=models["planner"],
            generator=models["generator"],
            verifier=models.get("verifier"),
            verify=self.config.verifier,
            put_blob=run.put_blob,
            blob=run.blob,
        )
        for spec in team.specs():
            await start(self._house, spec)
        if self.config.control is not False:
            control = partial(
                ControlServer,
                self,
                self.place.control,
                port=int(self.config.control is not True and self.config.control),
            )
            await start(self._house, ChildSpec(id="control", start=control, restart=Restart.TEMPORARY))
        grow = self._seed_worker(run, sandbox, team)
        spec = ChildSpec(
            id="field", start=partial(self._make_field, run, grow, accounts), restart=Restart.TRANSIENT
        )
        self._progress.phase = Phase.GROWING
        await start(self._house, spec)
        await self._ending.ended.wait()

    def _seed_worker(self, run: Run, sandbox: Sandbox, team: Team) -> "_SeedWorker":
        greenhouse = Greenhouse(sandbox, self.chosen.tools, max_sandboxes=self.config.max_sandboxes)
        roles = Gated(
            self._gate,
            planner=team.planner,
            executor=team.executor,
            verifier=team.verifier,
            generator=team.generator,
        )
        grower = Grower(
            self.config.growth,
            run=run.key,
            planner=roles,
            executor=roles,
            verifier=roles,
            greenhouse=greenhouse,
            observer=self._progress.saw_node,
        )
        return _SeedWorker(run, grower, roles, self.config, self._progress, stateful=greenhouse.stateful)

    def _make_field(self, run: Run, worker: "_SeedWorker", accounts: Accounts) -> Field:
        async def keep_books() -> None:
            await run.save_usage(accounts.by_role)

        self._field = Field(
            run,
            worker.grow,
            worker.give_up,
            owner=this_process(),
            at_once=self.config.open_trees or worker.at_once,
            gate=self._gate,
            ending=self._ending,
            progress=self._progress,
            renew_seconds=LEASE_SECONDS / 3,
            grace_seconds=self._grace_seconds,
            keep_books=keep_books,
        )
        return self._field


class _SeedWorker:
    """Everything there is to do for a seed."""

    def __init__(
        self,
        run: Run,
        grower: Grower,
        generator: Gated,
        config: SynthesisConfig,
        progress: Progress,
        *,
        stateful: bool,
    ) -> None:
        self._run = run
        self._grower = grower
        self._generator = generator
        self._config = config
        self._progress = progress
        self._stateful = stateful

    @property
    def at_once(self) -> int:
        """How many trees may grow at once: as many as there is room for with a sandbox for each branch."""
        if not self._stateful:
            return OPEN_TREES
        return max(1, self._config.max_sandboxes // self._grower.settings.width)

    async def grow(self, seed: Seed) -> bytes:
        """Grow its tree and harvest it."""
        page = await self._run.open_page(seed)
        tree = await self._grower.grow(seed, page)
        given = await harvest(tree, self._config, self._generator, page)
        self._progress.questions += len(given.pairs)
        self._progress.rejected += len(given.rejected)
        return msgspec.json.encode(given)

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """What it gave when its work crashed again and again."""
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return msgspec.json.encode(Harvest(failure=why[:500]))


async def _harvests(run: Run) -> AsyncGenerator[tuple[Seed, Harvest]]:
    async for seed, body in run.harvests():
        yield seed, msgspec.json.decode(body, type=Harvest)
