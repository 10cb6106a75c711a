"""The loop: episodes, a step, new weights for the engine; again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from statistics import fmean
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import Backbone, Figures, with_proximal, with_reference
from agentflow.learner._checkpoints import CheckpointError, Checkpoints
from agentflow.learner._config import Schedule
from agentflow.learner._figures import batch_figures
from agentflow.learner._groups import Batch
from agentflow.learner._record import Rollouts
from agentflow.learner._rows import Row
from agentflow.learner._samples import Sample
from agentflow.learner._sources import Source
from agentflow.learner.losses import LossSettings, Step, step_of
from agentflow.telemetry import get_logger

__all__ = ["Loop", "Position", "Publish", "Report", "Validate", "in_thread"]

logger = get_logger(__name__)

A = TypeVarTuple("A")
T = TypeVar("T")

Publish = Callable[[int], Awaitable[None]]
"""Has the engine sample with the weights as they are now, of that version."""
Validate = Callable[[], Awaitable[Mapping[str, float]]]
"""Says what the policy can do now."""
Report = Callable[[int, Mapping[str, float]], None]
"""Is told the figures of a step."""


class Worker(Protocol):
    """Does what takes long, so that the event loop does not wait for it."""

    async def __call__(self, work: Callable[[Unpack[A]], T], /, *arguments: *A) -> T:
        """What it gives."""
        ...


async def in_thread(work: Callable[[Unpack[A]], T], /, *arguments: *A) -> T:
    """Do it in a thread; whoever is cancelled meanwhile waits for its end, for half a step is none."""
    return await anyio.to_thread.run_sync(work, *arguments)


class Position:
    """Where a run stands."""

    def __init__(self, said: Mapping[str, Any] | None = None) -> None:
        """Read what a checkpoint says; nothing is the beginning."""
        said = said or {}
        self.step: int = int(said.get("step", 0))
        """Steps that are made."""
        self.taken: int = int(said.get("taken", 0))
        """Draws that are made."""
        self.pending: tuple[int, ...] = tuple(said.get("pending", ()))
        """Those of them that no step has used."""

    def said(self) -> dict[str, object]:
        """As a checkpoint holds it."""
        return {"step": self.step, "taken": self.taken, "pending": list(self.pending)}

    def pass_over(self, batch: Batch) -> None:
        """The step of that batch is made."""
        self.step, self.taken, self.pending = batch.step, batch.taken, batch.pending


class Loop:
    """Steps until there are enough, or somebody stops it. It opens nothing: all that it needs is given to it."""

    def __init__(
        self,
        *,
        source: Source,
        backbone: Backbone,
        loss: LossSettings,
        schedule: Schedule,
        rollouts: Rollouts,
        checkpoints: Checkpoints,
        position: Position,
        report: Report,
        publish: Publish | None = None,
        validate: Validate | None = None,
        validate_every: int = 10,
        validates_first: bool = True,
        running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        work: Worker = in_thread,
    ) -> None:
        """Describe it.

        :param position: where it begins; the backbone stands there already.
        :param publish: has the engine take new weights; `None`: there is no engine.
        :param validate: says what the policy can do; `None`: it is not asked.
        :param running: keeps the source at work while steps are made.
        :param work: does what takes long.
        """
        self.position = position
        """Where it stands."""
        self.last: Figures = {}
        """The figures of the last step."""
        self._source = source
        self._backbone = backbone
        self._loss = loss
        self._schedule = schedule
        self._rollouts = rollouts
        self._checkpoints = checkpoints
        self._report = report
        self._publish = publish
        self._validate = validate
        self._validate_every = validate_every
        self._validates_first = validates_first
        self._running = running
        self._work = work
        self._stopped: RunStopped | None = None
        self._collecting: anyio.CancelScope | None = None
        self._saved = position.step

    def stop(self, why: str = "it was asked to stop") -> None:
        """End after the step that is being made; episodes in work are given up, and played again next time."""
        message = f"stopped after step {self.position.step}: {why}; run the same again to go on"
        self._stopped = self._stopped or RunStopped(StopCause.INTERRUPTED, message)
        if self._collecting is not None:
            self._collecting.cancel()

    async def run(self) -> None:
        """Make all steps.

        :raises RunStopped: if it ended early: what was done is kept, the same again goes on from there.
        """
        await self._catch_up()
        self._source.resume(self.position.taken, self.position.pending)
        if self._validate is not None and self._validates_first and self.position.step == 0:
            self._tell(0, dict(await self._validate()))
        async with self._running():
            while not self._is_done:
                batch = await self._collect()
                if batch is None:
                    break
                await self._work(self._rollouts.write, batch)
                figures = await self._learn(batch)
                await self._renew()
                await self._account(figures)
        await self._save(last=True)
        if self._stopped is not None:
            raise self._stopped

    @property
    def _is_done(self) -> bool:
        steps = self._schedule.steps
        return self._stopped is not None or (steps is not None and self.position.step >= steps)

    async def _catch_up(self) -> None:
        """Make the steps again that were made after the checkpoint: what they learned from is stored."""
        began = self.position.step
        while not self._is_done and (batch := await self._work(self._rollouts.read, self.position.step + 1)):
            if batch.version != self._backbone.version:
                raise ConfigurationError(
                    f"{self._rollouts.path(batch.step)}: was sampled by version {batch.version}, but this is version "
                    f"{self._backbone.version}: of another run; remove it, or name another output_dir"
                )
            self._tell(batch.step, await self._learn(batch))
        if self.position.step > began:
            logger.info("steps made again from stored rollouts", steps=self.position.step - began)
            await self._renew()

    async def _collect(self) -> Batch | None:
        with anyio.CancelScope() as self._collecting:
            if self._stopped is None:
                return await self._source.collect(self.position.step + 1, self._backbone.version)
        return None

    async def _learn(self, batch: Batch) -> Figures:
        """Make the step of a batch."""
        steps = [await self._work(step_of, samples, self._loss) for samples in self._parts(batch)]
        # Where no episode is better than another, a step would follow rounding errors, as far as its optimiser goes.
        telling = [step for step in steps if step.rows and step.figures["advantage/largest"] > 0]
        if not telling:
            logger.warning("nothing to learn from: all rewards of each task are equal", step=batch.step)
        rows = [await self._work(self._known, step) for step in telling]
        for step, part in zip(telling, rows, strict=True):
            step.figures.update(await self._work(self._backbone.step, part, self._loss))
        self.position.pass_over(batch)
        told = _mean([step.figures for step in steps])
        return {**batch_figures(batch), **told, "version": float(self._backbone.version)}

    def _parts(self, batch: Batch) -> list[list[Sample]]:
        """The samples of each step of the optimiser: whole groups."""
        count = min(self._schedule.steps_per_batch, len(batch.groups))
        parts = [batch.groups[place::count] for place in range(count)]
        return [[sample for group in part for sample in group.samples] for part in parts]

    def _known(self, step: Step) -> list[Row]:
        """The rows with what other weights than those of the step make of them."""
        rows: Sequence[Row] = step.rows
        if self._loss.kl > 0:
            rows = with_reference(self._backbone, rows)
        if self._schedule.steps_per_batch > 1 or self._schedule.staleness > 1:
            # What sampled may be far away: the ratio is that to the weights at the beginning of the step.
            rows = with_proximal(self._backbone, rows)
        return list(rows)

    async def _renew(self) -> None:
        if self._publish is not None:
            await self._publish(self._backbone.version)

    async def _account(self, figures: Figures) -> None:
        """What follows a step: validation, its figures, a checkpoint."""
        step, schedule = self.position.step, self._schedule
        score = None
        last = schedule.steps is not None and step >= schedule.steps
        if self._validate is not None and (last or step % self._validate_every == 0):
            figures |= await self._validate()
            score = figures.get("validation/score")
        if step % schedule.checkpoint_every == 0 or score is not None:
            figures["checkpoint/failed"] = float(not await self._save(score=score))
        self._tell(step, figures)

    async def _save(self, *, score: float | None = None, last: bool = False) -> bool:
        """A checkpoint of where it stands; whether there is one.

        :raises RunStopped: if the last one can't be written.
        """
        if self._saved == self.position.step:
            return True
        save = partial(self._checkpoints.save, score=score)
        try:
            await self._work(save, self._backbone, self.position.step, self.position.said())
        except CheckpointError as error:
            # Those before it stand, and the rollouts since then: nothing is lost but time.
            logger.warning("no checkpoint was written", step=self.position.step, problem=str(error))
            if last:
                raise RunStopped(StopCause.JOURNAL, f"{error}, then run the same again") from None
            return False
        self._saved = self.position.step
        return True

    def _tell(self, step: int, figures: Figures) -> None:
        self.last = figures
        self._report(step, figures)


def _mean(figures: Sequence[Mapping[str, float]]) -> Figures:
    """Several steps of the optimiser as one."""
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: fmean(one[name] for one in figures if name in one) for name in names}
