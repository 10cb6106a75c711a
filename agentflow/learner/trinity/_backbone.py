"""The Trinity backbone: hands rows to Trinity's trainer and takes its checkpoints."""

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import yaml

from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import Figures
from agentflow.learner._checkpoints import CheckpointError, atomic_folder, verify
from agentflow.learner._exchange import (
    TrainerRequest,
    TrainerResponse,
    pack_rows,
    read_message,
    write_message,
)
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.learner._trainer_process import (
    last_error,
    running_trainer,
    trainer_environment,
    trainer_folder,
)
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row, merge_rows
from agentflow.learner.trinity._settings import (
    INSIDE,
    JOB,
    TrinitySettings,
    explorer_configuration,
    refuse_unsupported,
    trinity_configuration,
    unsupported_loss,
)
from agentflow.serving import check_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POLL_SECONDS = 0.02
_STATE = "agentflow.json"
_TRINITY = "trinity"
_LATEST = "latest_checkpointed_iteration.txt"
"""Trinity's file with the step of its last complete checkpoint."""
_FIGURES_VARIABLE = "AGENTFLOW_TRINITY_FIGURES"
_log = structlog.get_logger(__name__)


class TrinityFailure(AgentFlowError):
    """Trinity failed, died or did not answer in time. One line: the operation and Trinity's last error."""


class TrinityBackbone:
    """Trains a policy with unmodified Trinity-RFT in its own environment; implements `Backbone` in part.

    Trinity's trainer is started by the first step, because its loss and temperature are fixed at its start. It has no
    log-probabilities to give, so several steps per batch are refused. See docs/trinity.md.
    """

    computes_reference = True
    """A step computes the log-probabilities of the reference policy itself."""

    def __init__(
        self,
        policy: PolicySettings,
        optimizer: OptimizerSettings | None = None,
        settings: TrinitySettings | None = None,
    ) -> None:
        """Check the settings; nothing is started yet.

        :raises ConfigurationError: if Trinity is missing, or does not support the settings.
        """
        self.optimizer_settings = optimizer or OptimizerSettings()
        self._policy, self._settings = policy, settings or TrinitySettings()
        refuse_unsupported(policy, self.optimizer_settings, self._settings)
        self._python = self._settings.interpreter()
        self._version = 0
        self._skipped = 0
        self._step = 0
        """Steps of Trinity, skipped ones included."""
        self._stack = ExitStack()
        self._base = self._stack.enter_context(trainer_folder())
        self._job = self._base / JOB
        self._running: ExitStack | None = None
        self._ended = threading.Event()
        self._started_with: tuple[LossSettings, float] | None = None
        self._log = self._settings.log or self._base / "trinity.log"

    @property
    def version(self) -> int:
        """Number of steps that changed the weights."""
        return self._version

    @property
    def temporary(self) -> Path:
        """Temporary folder of Trinity and Ray; deleted by `close`."""
        return self._base

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """Make one step of Trinity's optimizer on all rows, and wait for its checkpoint.

        :raises ConfigurationError: if Trinity does not support the loss or the rows.
        :raises TrinityFailure: if the step fails or takes too long, or Trinity does not start.
        :raises RunStopped: if too many consecutive steps had a non-finite gradient.
        """
        if not rows:
            return {"step/rows": 0.0, "step/skipped": 0.0}
        merged = self._accepted(rows, loss)
        self._start(loss, rows[0].temperature)
        self._step += 1
        self._ask(merged)
        figures = self._wait_for_step()
        skipped = not math.isfinite(figures.get("step/gradient_norm", 0.0))
        if skipped:
            self._skip()
        else:
            self._skipped = 0
            self._version += 1
        return figures | {"step/rows": float(len(rows)), "step/skipped": float(skipped)}

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> "list[NDArray[np.float32]]":
        """Refuse: Trinity's trainer returns no log-probabilities.

        :raises ConfigurationError: always, unless there are no rows.
        """
        if not rows:
            return []
        raise ConfigurationError(
            "log_probs: Trinity's trainer returns no log-probabilities; set schedule.steps_per_batch=1, "
            "or use backbone=local or verl"
        )

    def export(self, folder: Path, *, durable: bool = True) -> Path:
        """Copy the weights of Trinity's last checkpoint, or the initial ones before the first step. Adapters are merged.

        :raises CheckpointError: if it can't be written.
        :raises TrinityFailure: if the checkpoint is incomplete.
        """
        weights = Path(self._policy.model)
        if self._step and self._policy.lora is not None:
            return self._export_merged(folder, self._checkpoint / "actor" / "lora_adapter", durable)
        if self._step:
            weights = self._checkpoint / "actor" / "huggingface"
            try:
                check_folder(weights, Path(self._policy.model))
            except ConfigurationError as error:
                raise TrinityFailure(
                    f"Trinity's checkpoint of step {self._step} is incomplete: {error}"
                ) from None
        with atomic_folder(folder, durable=durable) as unfinished:
            for path in sorted(weights.iterdir()):
                if path.is_file():
                    shutil.copy2(path, unfinished / path.name)
        return folder

    def _export_merged(self, folder: Path, adapters: Path, durable: bool) -> Path:
        from agentflow.learner.local import merge_adapters  # imports torch

        try:
            return merge_adapters(self._policy, adapters, folder, durable=durable)
        except ConfigurationError as error:
            raise TrinityFailure(
                f"Trinity's checkpoint of step {self._step} is incomplete: {error}"
            ) from None

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write a checkpoint: Trinity's own, and the position of the loop.

        :raises CheckpointError: if it can't be written.
        """
        state = {
            "version": self._version,
            "skipped": self._skipped,
            "step": self._step,
            "position": dict(position),
        }
        with atomic_folder(folder) as unfinished:
            if self._step:
                # Trinity keeps the last two: a link keeps the files without copying them.
                shutil.copytree(self._checkpoint, unfinished / _TRINITY, copy_function=_link)
            (unfinished / _STATE).write_bytes(msgspec.json.encode(state))
        return folder

    def load(self, folder: Path) -> dict[str, object]:
        """Restore a checkpoint; return the position of the loop. A running trainer is stopped; the next step starts it.

        :raises CheckpointError: if it is incomplete, altered, or not one of Trinity's.
        """
        verify(folder)
        try:
            state: dict[str, Any] = msgspec.json.decode((folder / _STATE).read_bytes())
            step = int(state["step"])
        except (FileNotFoundError, KeyError):
            raise CheckpointError(
                f"{folder}: it is not a checkpoint of the Trinity backbone; use another one"
            ) from None
        self._stop()
        shutil.rmtree(self._job, ignore_errors=True)
        self._step, self._version, self._skipped = step, state["version"], state["skipped"]
        if step:
            shutil.copytree(folder / _TRINITY, self._checkpoint, copy_function=_link)
            (self._job / _LATEST).write_text(str(step))
        return state["position"]

    def close(self) -> None:
        """Stop Trinity and everything it started."""
        self._stop()
        self._stack.close()

    @property
    def _checkpoint(self) -> Path:
        return self._job / f"global_step_{self._step}"

    def _accepted(self, rows: Sequence[Row], loss: LossSettings) -> list[Row]:
        """Return the rows that Trinity gets: those that continue each other are one.

        :raises ConfigurationError: if it can't take them.
        """
        if problem := unsupported_loss(loss):
            raise ConfigurationError(problem)
        temperatures = {row.temperature for row in rows}
        if len(temperatures) > 1:
            raise ConfigurationError("temperature: Trinity has one for all rows; sample all rows at the same")
        if any(row.proximal is not None for row in rows):
            raise ConfigurationError(
                "schedule.steps_per_batch: backbone=trinity makes one step per batch; set it to 1"
            )
        if self._started_with not in (None, (loss, *temperatures)):
            raise ConfigurationError(
                "loss: Trinity's loss and temperature are fixed at its start; make another backbone for others"
            )
        merged = merge_rows(rows)
        if len(merged) > self._settings.max_rows:
            raise ConfigurationError(
                f"trinity.max_rows: the step has {len(merged)} rows, more than {self._settings.max_rows}; "
                "raise it, or lower schedule.tasks_per_step"
            )
        return merged

    def _start(self, loss: LossSettings, temperature: float) -> None:
        if self._running is not None and not self._ended.is_set():
            return
        self._stop()
        for name in ("orders", "figures"):
            shutil.rmtree(self._base / name, ignore_errors=True)
            (self._base / name).mkdir()
        shutil.rmtree(self._job / "log", ignore_errors=True)
        for path in self._base.glob("rows.db*"):
            path.unlink()
        # It resumes at its last complete checkpoint, which a failed step may not have.
        self._step = self._latest()
        configuration = trinity_configuration(
            self._policy, self.optimizer_settings, loss, self._settings, self._base, temperature=temperature
        )
        configurations = {"trainer": configuration}
        if self._settings.explorer is not None:
            configurations["explorer"] = explorer_configuration(configuration, self._settings.explorer)
        paths = [self._base / f"{name}.yaml" for name in configurations]
        for path, content in zip(paths, configurations.values(), strict=True):
            path.write_text(yaml.safe_dump(content))
        environment = trainer_environment(self._base / "code") | {
            "RAY_TMPDIR": str(self._base),
            _FIGURES_VARIABLE: str(self._base / "figures"),
        }
        stack = ExitStack()
        self._ended = stack.enter_context(
            running_trainer(
                "Trinity",
                [str(self._python), "-m", INSIDE, *map(str, paths)],
                environment,
                self._base,
                self._log,
                self._settings.start_seconds,
                TrinityFailure,
            )
        )
        self._running, self._started_with = stack, (loss, temperature)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.close()
        self._running, self._started_with = None, None

    def _ask(self, rows: Sequence[Row]) -> None:
        """Hand over the rows of a step.

        :raises TrinityFailure: if they are refused, or Trinity has died.
        """
        place = self._base / "orders" / f"{self._step:08d}.order"
        write_message(place, TrainerRequest(kind="step"), pack_rows(rows))
        answered = place.with_suffix(".answer")
        self._wait(answered.exists, "the rows")
        response, _ = read_message(answered, TrainerResponse)
        for done in (answered, place.with_suffix(".taken")):
            shutil.rmtree(done, ignore_errors=True)
        if response.error:
            raise TrinityFailure(f"Trinity refused the rows of step {self._step}: {response.error}")

    def _wait_for_step(self) -> Figures:
        """Wait until Trinity has made the step and written its checkpoint; return its figures.

        A failed step has a checkpoint, too, but no figures.

        :raises TrinityFailure: if it fails, or takes too long.
        """
        figures = self._base / "figures" / f"{self._step}.json"
        self._wait(lambda: figures.exists() and self._latest() >= self._step, "the step")
        found: dict[str, float] = json.loads(figures.read_text())
        renamed = {"actor/grad_norm": "step/gradient_norm", "actor/loss": "step/loss"}
        return {renamed.get(name, f"trinity/{name}"): value for name, value in found.items()}

    def _latest(self) -> int:
        try:
            return int((self._job / _LATEST).read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._settings.step_seconds
        while not done():
            if self._ended.wait(_POLL_SECONDS) and not done():
                # The process may end before Ray has forwarded what its trainer wrote.
                own = self._job / "log" / "trainer.log"
                raise TrinityFailure(f"Trinity died during {what} {self._step}: {last_error(own, self._log)}")
            if time.monotonic() > deadline:
                self._stop()
                raise TrinityFailure(
                    f"Trinity did not finish {what} {self._step} within {self._settings.step_seconds:g} seconds "
                    "(trinity.step_seconds); it was stopped"
                )

    def _skip(self) -> None:
        self._skipped += 1
        _log.warning("skipped a non-finite step", in_a_row=self._skipped)
        if self._skipped > self.optimizer_settings.max_skipped_steps:
            raise RunStopped(
                StopCause.LEARNER,
                f"the gradient was not finite in {self._skipped} consecutive steps: "
                "lower optimizer.learning_rate, or check the rewards and log-probabilities of these rows",
            )


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
