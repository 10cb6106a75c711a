"""Rounds of a synthesis and a training: the policy grows trees, the kept pairs train it, and it grows the next ones.

A round has four stages, and each is resumed by running it again: a synthesis, episodes that measure the new pairs, the steps of
one training that all rounds share, and episodes that measure the held-out pairs. The settings fix which version of the weights
does which, so neither time nor a crash decides anything.
"""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from agentflow._private_files import make_private_folder
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.journal import NewSeed
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner._config import POLICY
from agentflow.learner._engine import PolicyEngine, open_engine, policy_of, served_for_runs
from agentflow.learner._exploration import PLANNER, RoundSynthesis
from agentflow.learner._groups import ANSWER_SCORE, Batch, EpisodeResult, TaskDraw
from agentflow.learner._policy import find_model
from agentflow.learner._progress import TrainStatus
from agentflow.learner._rounds import (
    TRAINING,
    FlywheelResult,
    FlywheelRound,
    guidance,
    read_rounds,
    round_name,
    write_rounds,
)
from agentflow.learner._run import TrainRun, rules_for_tasks
from agentflow.learner._sources import refuse_empty, run_groups
from agentflow.learner._team_rollouts import RolloutContext, TeamRollouts
from agentflow.models import OFFLINE, Accounts
from agentflow.rollouts import assign
from agentflow.runs import Phase, Resume, RoleModel, check_output, lock_output, traced_run, write_report_page
from agentflow.scoring import bootstrap
from agentflow.synthesis import PAIRS, DifficultySettings, SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisStatus
from agentflow.trace import Task

if TYPE_CHECKING:
    from agentflow.learner._config import TrainConfig

HELD_OUT: Final = "held-out"
"""Folder of the synthesis of held-out pairs."""
_MEASURED: Final = "measured"
_CHUNK: Final = 32
"""Tasks that are measured before their episodes are stored."""


class FlywheelStatus(Struct, frozen=True, kw_only=True):
    """Progress of the rounds at one moment."""

    phase: Phase
    """Current phase."""
    seconds: float
    """Seconds since this process began."""
    round: int
    """Number of the round; 0 before the first one."""
    rounds: int
    """Number of rounds of the run."""
    stage: str
    """Stage of the round."""
    synthesis: SynthesisStatus | None
    """Progress of its synthesis, while it runs."""
    training: TrainStatus | None
    """Progress of the training, while it runs."""


class _Weights(NamedTuple):
    folder: Path
    version: int
    steps: int


class _UsedDocument(Struct):
    id: str


class _PairMetadata(Struct):
    kind: str
    hops: int
    documents: list[_UsedDocument]


class _PairLine(Struct):
    """As much of a line of the file of pairs as a round uses."""

    qa_id: str
    source_id: str
    question: str
    answer: str
    metadata: _PairMetadata


class _Pair(NamedTuple):
    task: Task
    kind: str
    hops: int
    documents: frozenset[str]


class FlywheelRun:
    """A synthesis and a training that feed each other. An instance runs once; another one resumes it.

    See docs/supervisor.md.
    """

    def __init__(
        self,
        config: SynthesisConfig,
        training: "TrainConfig",
        seeds: Sequence[NewSeed],
        *,
        resume: Resume = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Configure it.

        :param config: settings of the syntheses.
        :param training: settings of the training; `schedule.steps` is the number of steps of a round.
        :param seeds: the seeds of all rounds, then the held-out ones.
        :param resume: continue an existing run: `auto`, `always` or `never`.
        :param clock: monotonic seconds.
        """
        self.config = config
        """Settings of the syntheses."""
        self.training = training.model_copy(update={"output_dir": str(config.output / TRAINING)})
        """Settings of the training."""
        self.result = FlywheelResult()
        """The finished rounds."""
        self._seeds = [
            structs.replace(seed, id=seed.id or f"seed_{number:03d}") for number, seed in enumerate(seeds, 1)
        ]
        self._resume: Resume = resume
        self._clock, self._began = clock, clock()
        self._phase, self._round, self._stage = Phase.STARTING, 0, ""
        self._current: RoundSynthesis | TrainRun | None = None
        self._stopped = ""

    @property
    def folder(self) -> Path:
        """Output directory."""
        return self.config.output

    def status(self) -> FlywheelStatus:
        """Return the current progress."""
        current = self._current
        return FlywheelStatus(
            phase=self._phase,
            seconds=self._clock() - self._began,
            round=self._round,
            rounds=self.config.rounds,
            stage=self._stage,
            synthesis=current.status() if isinstance(current, RoundSynthesis) else None,
            training=current.status() if isinstance(current, TrainRun) else None,
        )

    def stop(self, why: str = "stop was requested") -> None:
        """Stop after what is in flight; everything is kept."""
        self._stopped = self._stopped or why
        if self._current is not None:
            self._current.stop(why)

    def stop_now(self) -> None:
        """Do not wait for what is in flight."""
        if self._current is not None:
            self._current.stop_now()

    async def run(self) -> FlywheelResult:
        """Run all rounds that are not finished.

        :raises ConfigurationError: if a setting can't be used.
        :raises RunStopped: if it ended early; the same command resumes.
        """
        self._check()
        try:
            async with traced_run("flywheel", self.folder, self.config.tracing):
                with lock_output(self.folder):
                    await self._work()
        except BaseException:
            self._phase = Phase.STOPPED
            raise
        self._phase = Phase.DONE
        return self.result

    def _check(self) -> None:
        """Check everything before anything is begun."""
        config, training, folder = self.config, self.training, self.folder
        policy_of(training)
        if training.episodes.agent != "team" or training.episodes.trained_roles != (PLANNER,):
            raise ConfigurationError(
                "learner.episodes: the planner of a team grows the trees; leave out agent and trained"
            )
        if training.schedule.steps is None or training.schedule.mode != "sync":
            raise ConfigurationError(
                "learner.schedule: a round needs a fixed number of steps; set steps, and leave out mode"
            )
        if config.task_kind is not None:
            raise ConfigurationError("tasks: with learner, pairs are trained on; set tasks=questions")
        held_out, rounds = self._divided()
        if not held_out or not all(rounds):
            raise ConfigurationError(
                f"rounds: {len(self._seeds)} seeds are too few for {config.rounds} rounds and "
                f"held_out={config.held_out:g}; add seeds"
            )
        check_output(folder)
        exists = (folder / HELD_OUT).exists()
        if exists and self._resume == "never":
            raise ConfigurationError(
                f"resume: {folder} already contains a run; name another output_dir, or leave out resume=never"
            )
        if not exists and self._resume == "always":
            raise ConfigurationError(f"resume: {folder} contains no run to resume; check output_dir")
        self.result = read_rounds(folder)
        make_private_folder(self.training.output)

    def _divided(self) -> tuple[list[NewSeed], list[list[NewSeed]]]:
        """Return the held-out seeds, and those of each round."""
        count = len(self._seeds) - ceil(self.config.held_out * len(self._seeds))
        ends = [number * count // self.config.rounds for number in range(self.config.rounds + 1)]
        return self._seeds[count:], [self._seeds[begin:end] for begin, end in pairwise(ends)]

    async def _work(self) -> None:
        held_out_seeds, rounds = self._divided()
        if len(self.result.rounds) < len(rounds):
            self._phase = Phase.ENGINE
            async with self._engine() as engine:
                self._phase = Phase.GROWING
                held_out = await self._synthesise(engine, HELD_OUT, held_out_seeds, None)
                if not held_out:
                    raise ConfigurationError(
                        f"held_out: its {len(held_out_seeds)} seeds gave no pair; see {self.folder / HELD_OUT}"
                    )
                for number, seeds in enumerate(rounds, 1):
                    self._round = number
                    if number > len(self.result.rounds):
                        await self._run_round(engine, number, seeds, held_out)
        await write_report_page(self.folder)

    async def _run_round(
        self, engine: PolicyEngine, number: int, seeds: Sequence[NewSeed], held_out: Sequence[_Pair]
    ) -> None:
        """Run the stages of a round and store it."""
        weights = self._weights()
        before = await self._measure(engine, held_out, f"{HELD_OUT}-0", self._start())
        kept = await self._synthesise(engine, round_name(number), seeds, weights)
        excluded = frozenset[str]().union(*(pair.documents for pair in held_out))
        pairs = [pair for pair in kept if pair.documents.isdisjoint(excluded)]
        rates = await self._measure(engine, pairs, round_name(number), weights)
        low, high = self.config.difficulty.window
        chosen = tuple(id for id, rate in rates.items() if low <= rate <= high)
        trained = await self._train(self._chosen_before() + _tasks(pairs, chosen), weights)
        after = await self._measure(engine, held_out, f"{HELD_OUT}-{trained.version}", trained)
        changes = [after[id] - before[id] for id in before.keys() & after.keys()]
        interval = bootstrap(sorted(changes))
        finished = FlywheelRound(
            number=number,
            version=weights.version,
            seeds=len(seeds),
            pairs=len(kept),
            shared=len(kept) - len(pairs),
            rates=rates,
            chosen=chosen,
            steps=trained.steps,
            next_version=trained.version,
            held_out=fmean(after.values()),
            gain=(fmean(changes), interval.low, interval.high),
        )
        self.result = FlywheelResult(
            held_out_pairs=len(held_out),
            baseline=fmean(before.values()),
            rounds=(*self.result.rounds, finished),
        )
        write_rounds(self.folder, self.result)

    def _start(self) -> _Weights:
        """Return the initial weights."""
        return _Weights(find_model(policy_of(self.training)).absolute(), 0, 0)

    def _weights(self) -> _Weights:
        """Return the weights at the end of the last finished round.

        If the training of the next one has ended, their folder has its weights; by then nothing else is sampled.
        """
        last = self.result.rounds[-1] if self.result.rounds else None
        if last is None or not last.steps:
            return self._start()
        return _Weights(self._trained, last.next_version, last.steps)

    @property
    def _trained(self) -> Path:
        """Folder of the trained weights."""
        return (self.training.output / "policy").absolute()

    def _chosen_before(self) -> list[Task]:
        """Return the pairs that the finished rounds chose, as tasks."""
        return [
            task
            for finished in self.result.rounds
            for task in _tasks(self._pairs(round_name(finished.number)), finished.chosen)
        ]

    def _pairs(self, name: str) -> list[_Pair]:
        """Return the pairs of a synthesis, in the order of their file."""
        kwargs = {seed.id: seed.kwargs for seed in self._seeds}
        with (self.folder / name / PAIRS).open("rb") as lines:
            return [
                _pair(msgspec.json.decode(line, type=_PairLine), index, kwargs)
                for index, line in enumerate(lines)
            ]

    @asynccontextmanager
    async def _engine(self) -> AsyncGenerator[PolicyEngine]:
        """Serve the policy for all stages."""
        start = self._start().folder
        roles = {f"{role} of trees": self.config.model_for(role) for role in self.config.role_models}
        async with served_for_runs(self.training, start) as self.training:
            wanted = {**roles, **self.training.episodes.models}
            async with open_engine(self.training, start, str(start), wanted) as engine:
                yield engine

    @contextmanager
    def _doing(self, stage: str, run: RoundSynthesis | TrainRun | None = None) -> Generator[None]:
        """Be in a stage inside the block.

        :raises RunStopped: if the run was stopped.
        """
        if self._stopped:
            message = f"stopped: {self._stopped}; run the same command again to resume"
            raise RunStopped(StopCause.INTERRUPTED, message)
        self._stage, self._current = stage, run
        yield
        self._current = None

    async def _synthesise(
        self, engine: PolicyEngine, name: str, seeds: Sequence[NewSeed], weights: _Weights | None
    ) -> list[_Pair]:
        """Run a synthesis and return its pairs.

        :param weights: weights that grow its trees; `None`: the planner of the settings does.
        """
        update: dict[str, object] = {
            "learner": None,
            "difficulty": DifficultySettings(),
            "run_name": f"{self.config.run_name}-{name}",
        }
        version = 0
        if weights is not None:
            version = weights.version
            await engine.publish(weights.folder, version)
            update |= {"planner_model": RoleModel(model_name=f"{POLICY}-{version}"), **self._guidance()}
            if self.config.offline:
                # Else the other roles would have the model of the settings' default.
                update["model_name"] = OFFLINE
        config = self.config.model_copy(update=update)
        run = RoundSynthesis(
            config,
            self.folder / name,
            engine=engine,
            rules=None if weights is None else self.training.episodes,
            source=(self.training.seed, version),
        )
        with self._doing(f"synthesis {name}", run):
            await run.run(seeds)
        return self._pairs(name)

    def _guidance(self) -> dict[str, str]:
        """Return the tips with what the measurements of the last round say."""
        if not self.result.rounds:
            return {}
        last = self.result.rounds[-1]
        lines = guidance(
            [
                (pair.kind, pair.hops, last.rates[pair.task.id])
                for pair in self._pairs(round_name(last.number))
                if pair.task.id in last.rates
            ],
            self.config.difficulty.window,
        )
        tips = {"sampling_tips": self.config.sampling_tips, "synthesis_tips": self.config.synthesis_tips}
        return {name: "\n".join(filter(None, (text, *lines))) for name, text in tips.items()}

    async def _measure(
        self, engine: PolicyEngine, pairs: Sequence[_Pair], name: str, weights: _Weights
    ) -> dict[str, float]:
        """Return the mean reward of episodes at each pair by its id; a pair without an episode that ended is left out.

        The episodes of 32 pairs are stored together. The same pairs get the same seeds whatever the weights.
        """
        tasks = [pair.task for pair in pairs]
        chunks = [tasks[begin : begin + _CHUNK] for begin in range(0, len(tasks), _CHUNK)]
        store = RolloutStore(self.folder / _MEASURED / name)
        missing = [step for step in range(1, len(chunks) + 1) if not store.path(step).exists()]
        size = self.config.difficulty.attempts or self.training.schedule.episodes_per_task
        if missing:
            await engine.publish(weights.folder, weights.version)
            async with TeamRollouts().open(self._context(engine, tasks, weights)) as rollout:
                rollout.version = weights.version
                for step in missing:
                    draws = [TaskDraw(task.index, task) for task in chunks[step - 1]]
                    with self._doing(f"measuring {name}: {step} of {len(chunks)}"):
                        groups = await run_groups(rollout, draws, size)
                    refuse_empty(step, groups)
                    taken = (step - 1) * _CHUNK + len(draws)
                    store.write(Batch(step=step, version=weights.version, taken=taken, groups=tuple(groups)))
        ids = {task.index: task.id for task in tasks}
        stored = [batch for step in range(1, len(chunks) + 1) if (batch := store.read(step)) is not None]
        return {
            ids[group.number]: fmean(
                sample.details.get(ANSWER_SCORE, sample.reward) for sample in group.samples
            )
            for batch in stored
            for group in batch.groups
            if group.samples
        }

    def _context(self, engine: PolicyEngine, tasks: Sequence[Task], weights: _Weights) -> RolloutContext:
        """Return what the episodes of a measurement use; they are independent, whatever those of the training are."""
        config = self.training.model_copy(update={"branching": None})
        rules = config.episodes
        return RolloutContext(
            config=config,
            assignment=assign(rules_for_tasks(config, "training", tasks), tasks),
            models=engine.models(rules.models),
            engine_ready=engine.ready,
            on_result=_ignore,
            accounts=Accounts(max_tokens=rules.max_total_tokens, max_cost=rules.max_cost),
            version=weights.version,
        )

    async def _train(self, tasks: Sequence[Task], weights: _Weights) -> _Weights:
        """Make the steps of a round and return the weights at their end; without tasks, nothing changes."""
        steps = self.training.schedule.steps
        assert steps is not None, "checked before"
        if not tasks:
            return weights
        schedule = self.training.schedule.model_copy(update={"steps": weights.steps + steps, "epochs": None})
        run = TrainRun(self.training.model_copy(update={"schedule": schedule}), tasks=tasks)
        with self._doing("training", run):
            outcome = await run.run()
        return _Weights(self._trained, outcome.version, outcome.steps)


def _pair(line: _PairLine, index: int, kwargs: Mapping[str | None, dict[str, Any]]) -> _Pair:
    metadata = line.metadata
    task = Task(
        index=index,
        id=line.qa_id,
        question=line.question,
        references=(line.answer,),
        kwargs=kwargs.get(line.source_id, {}),
        metadata={"class": metadata.kind},
    )
    documents = frozenset(document.id for document in metadata.documents)
    return _Pair(task, metadata.kind, metadata.hops, documents)


def _tasks(pairs: Sequence[_Pair], chosen: Sequence[str]) -> list[Task]:
    wanted = set(chosen)
    return [pair.task for pair in pairs if pair.task.id in wanted]


def _ignore(result: EpisodeResult) -> None:
    del result
