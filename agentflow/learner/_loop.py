"""The training loop: rollout, step, weight update of the engine, repeat."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import (
    Backbone,
    Figures,
    ScoringBackbone,
    with_proximal,
    with_reference,
)
from agentflow.learner._checkpoints import CallScores, CheckpointError, Checkpoints, RolloutStore
from agentflow.learner._config import TrainConfig
from agentflow.learner._groups import (
    MAX_CLASSES,
    Batch,
    GroupOutcome,
    Sample,
    batch_figures,
    group_outcomes,
    optimizer_parts,
    signal_figures,
)
from agentflow.learner._progress import TrainProgress
from agentflow.learner._sources import BatchSource
from agentflow.learner.losses import step_rows
from agentflow.learner.losses._step import trained_calls
from agentflow.learner.packing import Row
from agentflow.runs import Phase
from agentflow.serving import TOLERANCES
from agentflow.telemetry import conventions, get_logger, step_operation

logger = get_logger(__name__)

_SELF_K3 = 1e-8
"""Limit of the KL divergence of the trainer from itself, in the same packing."""
_UNKNOWN = np.zeros(0, np.float32)

PROBE_ROWS, PROBE_TOKENS = 8, 256
"""Maximum size of a probe, but for its first row."""

MAX_FLAT_SHARE: Final = 0.8
"""Share of groups with equal rewards from which a step counts as one without signal."""
FLAT_STEPS: Final = 5
"""Consecutive steps without signal before a warning."""

A = TypeVarTuple("A")
T = TypeVar("T")


class ProbeRows(NamedTuple):
    """Rows that the engine sampled, on which it is compared with the trainer."""

    rows: Sequence[Row]
    """Rows, at temperature 1."""
    before: Sequence[NDArray[np.float32]]
    """The trainer's log-probabilities before its step; empty: unknown."""
    noise: float
    """Root mean square of the differences between engine and trainer before the step; 0: unknown."""


@dataclass(frozen=True, kw_only=True)
class LoopHooks:
    """Parts of a run that its loop calls."""

    report: Callable[[int, Mapping[str, float]], None]
    """Receives the figures of each step."""
    publish: Callable[[int, ProbeRows | None], Awaitable[Figures]] | None = None
    """Publishes the current weights to the engine, as the given version; compares both on rows, and returns figures. `None`:
    there is no engine."""
    use: Callable[[Batch], Awaitable[None]] | None = None
    """Marks the episodes of a batch as used, once the batch is on disk. `None`: nothing keeps them."""
    validate: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    """Evaluates the policy on the held-out tasks. `None`: there are none."""
    validation_episodes: int = 0
    """Number of episodes of a validation, to be shown."""


async def in_thread(work: Callable[[Unpack[A]], T], /, *arguments: *A) -> T:
    """Run blocking work in a thread. Cancellation waits for its end: a half-applied step is invalid."""
    return await anyio.to_thread.run_sync(work, *arguments)


class LoopPosition(Struct, kw_only=True):
    """Position of a run, as stored in checkpoints."""

    step: int = 0
    """Number of steps made."""
    taken: int = 0
    """Number of draws made."""
    pending: tuple[int, ...] = ()
    """Draws that no step has used."""


class Loop:
    """Makes steps until the schedule ends or `stop` is called. All resources are passed in."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        source: BatchSource,
        backbone: Backbone,
        rollouts: RolloutStore,
        checkpoints: Checkpoints,
        position: LoopPosition,
        hooks: LoopHooks,
        progress: TrainProgress | None = None,
    ) -> None:
        """Configure it.

        :param position: position to start at; the backbone has been restored to it.
        :param progress: measures each phase; `None`: nothing shows it.
        """
        self.position = position
        """Current position."""
        self.last: Figures = {}
        """Figures of the last step."""
        self._loss = config.loss
        self._schedule = config.schedule
        self._validation = config.validation
        self._source = source
        self._backbone = backbone
        self._rollouts = rollouts
        self._checkpoints = checkpoints
        self._hooks = hooks
        self._progress = progress or TrainProgress(config.schedule.steps)
        self._signal = SignalWatch()
        self._stopped: RunStopped | None = None
        self._collecting: anyio.CancelScope | None = None
        self._saved = position.step
        self._probed: ProbeRows | None = None
        self._is_self_checked = False
        self._disagrees = False

    def stop(self, why: str = "stop was requested") -> None:
        """Stop after the current step; running episodes are cancelled, and run again when the run resumes."""
        message = f"stopped after step {self.position.step}: {why}; run the same command to resume"
        self._stopped = self._stopped or RunStopped(StopCause.INTERRUPTED, message)
        if self._collecting is not None:
            self._collecting.cancel()

    async def run(self) -> None:
        """Make all steps.

        :raises RunStopped: if it was stopped early; the same command resumes.
        """
        await self._catch_up()
        self._source.resume(self.position.taken, self.position.pending)
        if self._hooks.validate is not None and self._validation.eval_on_start and self.position.step == 0:
            self._report_step(0, await self._validated())
        async with self._source.running():
            while not self._is_done:
                batch = await self._collect()
                if batch is None:
                    break
                await in_thread(self._rollouts.write, batch)
                if self._hooks.use is not None:
                    # After the batch is on disk, and before its step: a step made again reads the stored batch.
                    await self._hooks.use(batch)
                with step_operation(batch.step) as operation:
                    with self._progress.during(Phase.STEP):
                        figures = await self._learn(batch)
                    operation.set(conventions.REWARD, figures.get("reward/mean"))
                    figures |= await self._publish_weights()
                self._signal.add(batch)
                await self._finish_step(figures)
        await self._save(last=True)
        if self._stopped is not None:
            raise self._stopped

    @property
    def _is_done(self) -> bool:
        steps = self._schedule.steps
        return self._stopped is not None or (steps is not None and self.position.step >= steps)

    async def _catch_up(self) -> None:
        """Repeat the steps made after the last checkpoint, from their stored rollouts."""
        began = self.position.step
        while not self._is_done and (batch := await in_thread(self._rollouts.read, self.position.step + 1)):
            if batch.version != self._backbone.version:
                raise ConfigurationError(
                    f"{self._rollouts.path(batch.step)}: was sampled by version {batch.version}, but the weights are version "
                    f"{self._backbone.version}; it belongs to another run: remove it, or name another output_dir"
                )
            with self._progress.during(Phase.STEP):
                figures = await self._learn(batch)
            self._signal.add(batch)
            self._report_step(batch.step, figures)
        if self.position.step > began:
            logger.info("steps made again from stored rollouts", steps=self.position.step - began)
            await self._publish_weights()

    async def _collect(self) -> Batch | None:
        expected = self._schedule.tasks_per_step * self._schedule.episodes_per_task
        with self._progress.during(Phase.ROLLOUTS, expected), anyio.CancelScope() as self._collecting:
            if self._stopped is None:
                return await self._source.collect(self.position.step + 1, self._backbone.version)
        return None

    async def _learn(self, batch: Batch) -> Figures:
        """Make the step of a batch."""
        steps = [
            _Part(
                positions,
                *await in_thread(step_rows, [batch.samples[position] for position in positions], self._loss),
            )
            for positions in optimizer_parts(batch, self._schedule.steps_per_batch)
        ]
        # Without an advantage, the gradient is rounding noise, which Adam would scale to a full step.
        informative = [part for part in steps if part.rows and part.figures["advantage/largest"] > 0]
        if not informative:
            logger.warning("nothing to learn from: all rewards of each task are equal", step=batch.step)
        if batch.samples and not any(sample.reward or any(sample.turn_rewards) for sample in batch.samples):
            logger.warning("all rewards of the step are 0; check the reward function", step=batch.step)
        # All parts before the first step: their proximal log-probabilities are those of the current weights.
        parts = [part._replace(rows=await in_thread(self._with_log_probs, part.rows)) for part in informative]
        scores: list[CallScores] = []
        for part in parts:
            part.figures.update(await in_thread(self._step, part.rows))
            # Several steps: the engine had the weights before the first one.
            self._probed = choose_probe(part.rows, self._step_log_probs if len(parts) == 1 else [])
            if self._schedule.save_log_probs:
                scores += await in_thread(self._scores_of, batch.samples, part)
        await in_thread(self._write_scores, batch.step, scores)
        self.position.step, self.position.taken, self.position.pending = (
            batch.step,
            batch.taken,
            batch.pending,
        )
        loss_figures = _mean([part.figures for part in steps])
        figures = {
            **batch_figures(batch),
            **signal_figures(batch),
            **loss_figures,
            "version": float(self._backbone.version),
        }
        self._warn_of_disagreement(figures)
        return figures

    def _step(self, rows: list[Row]) -> Figures:
        """Make an optimizer step; before the first one, let the trainer compute its log-probabilities twice."""
        if self._is_self_checked or not isinstance(self._backbone, ScoringBackbone):
            return self._backbone.step(rows, self._loss)
        first = np.concatenate(self._backbone.log_probs(rows))
        figures = self._backbone.step(rows, self._loss)
        self._is_self_checked = True
        if len(again := np.concatenate([_UNKNOWN, *self._backbone.step_log_probs])) == len(first):
            apart = (again - first).astype(np.float64)
            figures["trainer/self_k3"] = float((np.exp(-apart) + apart - 1).mean())
            if not figures["trainer/self_k3"] < _SELF_K3:
                logger.warning(
                    "the trainer does not repeat its own log-probabilities", k3=figures["trainer/self_k3"]
                )
        return figures

    @property
    def _step_log_probs(self) -> list[NDArray[np.float32]]:
        """Log-probabilities of the last step; empty if the backbone does not keep them."""
        return self._backbone.step_log_probs if isinstance(self._backbone, ScoringBackbone) else []

    def _warn_of_disagreement(self, figures: Figures) -> None:
        """Warn once if what was sampled with the current weights has other probabilities in the trainer."""
        limit = TOLERANCES["bfloat16"]
        if self._disagrees or figures["staleness/max"] or self._schedule.steps_per_batch > 1:
            return
        if abs(figures.get("engine/k1", 0.0)) > limit.mean or figures.get("engine/rms", 0.0) > limit.rms:
            self._disagrees = True
            logger.warning(
                "engine and trainer disagree about sampled tokens: check that they have the same weights, template and data type",
                k1=figures["engine/k1"],
                rms=figures["engine/rms"],
            )

    def _scores_of(self, samples: Sequence[Sample], part: "_Part") -> list[CallScores]:
        """Return what the loss of an optimizer step used for each call; the step was just made."""
        log_probs = self._step_log_probs
        if not isinstance(self._backbone, ScoringBackbone):
            log_probs = [_UNKNOWN if row.proximal is None else row.proximal for row in part.rows]
        calls = trained_calls([samples[position] for position in part.positions], self._loss)
        return [
            CallScores(
                sample=part.positions[sample],
                call=call,
                advantage=float(row.advantages[0]),
                log_probs=values,
            )
            for (sample, call), row, values in zip(calls, part.rows, log_probs, strict=True)
        ]

    def _write_scores(self, step: int, scores: Sequence[CallScores]) -> None:
        """Store the scores of a step. They are only shown: without them, nothing is lost."""
        if scores:
            try:
                self._rollouts.write_scores(step, scores)
            except OSError as error:
                logger.warning("no log-probabilities were stored", step=step, problem=str(error))

    def _with_log_probs(self, rows: list[Row]) -> list[Row]:
        """Return rows with the reference and proximal log-probabilities that the loss needs."""
        if self._loss.kl_coef > 0:
            rows = with_reference(self._backbone, rows)
        if self._schedule.steps_per_batch > 1 or self._schedule.max_staleness > 1:
            # The sampling weights may be several updates old: the ratio refers to the weights at the beginning of the step.
            rows = with_proximal(self._backbone, rows)
        return rows

    async def _publish_weights(self) -> Figures:
        if self._hooks.publish is None:
            return {}
        with self._progress.during(Phase.PUBLICATION):
            return await self._hooks.publish(self._backbone.version, self._probed)

    async def _validated(self) -> Figures:
        assert self._hooks.validate is not None, "checked before"
        with self._progress.during(Phase.VALIDATION, self._hooks.validation_episodes):
            return dict(await self._hooks.validate())

    async def _finish_step(self, figures: Figures) -> None:
        """Validate, save a checkpoint and report, where due."""
        step, schedule = self.position.step, self._schedule
        score = None
        last = schedule.steps is not None and step >= schedule.steps
        if self._hooks.validate is not None and (last or step % self._validation.eval_steps == 0):
            figures |= await self._validated()
            score = figures.get("validation/score")
        if step % schedule.save_steps == 0 or score is not None:
            figures["checkpoint/failed"] = float(not await self._save(score=score))
        self._report_step(step, figures)

    async def _save(self, *, score: float | None = None, last: bool = False) -> bool:
        """Save a checkpoint of the current position; return false if it could not be written.

        :raises RunStopped: if the last one can't be written.
        """
        if self._saved == self.position.step:
            return True
        save = partial(self._checkpoints.save, score=score)
        try:
            with self._progress.during(Phase.WRITING):
                await in_thread(save, self._backbone, self.position.step, structs.asdict(self.position))
        except CheckpointError as error:
            # Earlier checkpoints and the rollouts since then are kept: only time is lost.
            logger.warning("no checkpoint was written", step=self.position.step, problem=str(error))
            if last:
                raise RunStopped(StopCause.JOURNAL, f"{error}, then run the same command to resume") from None
            return False
        self._saved = self.position.step
        return True

    def _report_step(self, step: int, figures: Figures) -> None:
        self.last = {**figures, **self._progress.take_seconds()}
        self._hooks.report(step, self.last)


def choose_probe(rows: Sequence[Row], log_probs: Sequence[NDArray[np.float32]]) -> ProbeRows:
    """Choose the first rows of a step, which share their prompt, for the comparison after it.

    :param log_probs: the trainer's log-probabilities of the rows before the step; empty: unknown.
    """
    count, tokens = 0, 0
    for row in rows[:PROBE_ROWS]:
        tokens += len(row.ids)
        if count and tokens > PROBE_TOKENS:
            break
        count += 1
    chosen = rows[:count]
    # Over all rows: that of a few tokens may be small by chance, and the comparison would find a difference in noise.
    differences = np.concatenate(
        [_UNKNOWN, *(values - row.behaviour for values, row in zip(log_probs, rows, strict=False))]
    )
    is_comparable = all(row.temperature == 1.0 for row in chosen)
    return ProbeRows(
        [replace(row, temperature=1.0) for row in chosen],
        log_probs[:count] if is_comparable else [],
        float(np.sqrt(np.square(differences).mean())) if len(differences) else 0.0,
    )


class SignalWatch:
    """Logs advice once when most groups, or all of a class, have had equal rewards for several steps."""

    def __init__(self) -> None:
        self._flat_steps = 0
        self._advised = False
        self._flat_steps_of: Counter[str] = Counter()
        self._warned: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Take the outcomes of a step into account."""
        outcomes = group_outcomes(batch)
        if not outcomes:
            return
        is_flat = fmean(outcome.is_flat for outcome in outcomes) > MAX_FLAT_SHARE
        self._flat_steps = self._flat_steps + 1 if is_flat else 0
        if self._flat_steps >= FLAT_STEPS and not self._advised:
            self._advised = True
            solved = fmean(outcome.reward for outcome in outcomes) > 0.5
            logger.warning(
                "most groups give no signal: their rewards are equal",
                step=batch.step,
                advice=f"use {'harder tasks' if solved else 'easier tasks or examples in the prompt'}, larger groups "
                "(schedule.episodes_per_task), a higher temperature, or schedule.replace_equal",
            )
        by_class: dict[str, list[GroupOutcome]] = {}
        for outcome in outcomes:
            by_class.setdefault(outcome.task_class, []).append(outcome)
        if len(by_class) <= MAX_CLASSES:
            self._watch_classes(batch.step, by_class)

    def _watch_classes(self, step: int, by_class: Mapping[str, list[GroupOutcome]]) -> None:
        for name, of_class in by_class.items():
            others = [
                outcome for other, outcomes in by_class.items() if other != name for outcome in outcomes
            ]
            if not all(outcome.is_flat for outcome in of_class):
                self._flat_steps_of[name] = 0
            elif not all(outcome.is_flat for outcome in others) and _mean_reward(of_class) < _mean_reward(
                others
            ):
                self._flat_steps_of[name] += 1
            if self._flat_steps_of[name] >= FLAT_STEPS and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "a class of tasks gives no signal while others learn: it is about to be forgotten",
                    task_class=name or "none",
                    step=step,
                    reward=round(_mean_reward(of_class), 4),
                    advice="fine-tune on a few right answers first, show an example of it in the prompt, raise its share of the "
                    "tasks, or use larger groups",
                )


def _mean_reward(outcomes: Iterable[GroupOutcome]) -> float:
    return fmean(outcome.reward for outcome in outcomes)


class _Part(NamedTuple):
    """One optimizer step."""

    positions: list[int]
    """Positions of its samples in the batch."""
    rows: list[Row]
    figures: dict[str, float]


def _mean(figures: Sequence[Mapping[str, float]]) -> Figures:
    """Average the figures of several optimizer steps."""
    names = dict.fromkeys(name for part in figures for name in part)
    return {name: fmean(part[name] for part in figures if name in part) for name in names}
