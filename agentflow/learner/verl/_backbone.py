"""The verl backbone: trains rows with verl's optimizer in Ray's processes.

verl is a supervised child process: it ends, with Ray, however this process ends.
"""

import shutil
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

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
from agentflow.learner.packing import Row
from agentflow.learner.verl._settings import VerlSettings, command_arguments

_POLL_SECONDS = 0.02
_END_SECONDS = 60.0
_STATE = "agentflow.json"
_VERL = "verl"
_log = structlog.get_logger(__name__)


class VerlFailure(AgentFlowError):
    """verl failed or died. One line: the operation and verl's last error."""


class VerlBackbone:
    """Trains a policy with unmodified verl in its own environment; implements `Backbone`.

    verl trains rows without prefix sharing: a shared prefix is computed for each row. See docs/verl.md.
    """

    def __init__(
        self,
        policy: PolicySettings,
        optimizer: OptimizerSettings | None = None,
        settings: VerlSettings | None = None,
    ) -> None:
        """Start verl and wait until it is ready, which takes a minute or more.

        :raises ConfigurationError: if verl is missing, or does not support the settings.
        :raises VerlFailure: if it does not become ready.
        """
        self.optimizer_settings = optimizer or OptimizerSettings()
        self._version = 0
        self._skipped = 0
        self._number = 0
        self._stack = ExitStack()
        self._folder: Path
        self._ended: threading.Event
        self._folder, self._ended, self._log = self._stack.enter_context(
            _running_verl(policy, self.optimizer_settings, settings or VerlSettings())
        )

    @property
    def version(self) -> int:
        """Number of steps that changed the weights."""
        return self._version

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """Make one step of verl's optimizer on all rows.

        :raises ConfigurationError: if verl does not support the loss.
        :raises RunStopped: if too many consecutive steps had a non-finite loss or gradient.
        """
        if not rows:
            return {"step/rows": 0.0, "step/skipped": 0.0}
        if loss.entropy_coef:
            raise ConfigurationError(
                "loss.entropy_coef: verl's step does not return the entropy; set it to 0"
            )
        if len({row.temperature for row in rows}) > 1:
            raise ConfigurationError(
                "temperature: verl's step has one for all rows; sample all rows at the same"
            )
        answer, _ = self._ask(TrainerRequest(kind="step", loss=loss.model_dump(mode="json")), rows)
        if answer.figures["step/skipped"]:
            self._skip()
        else:
            self._skipped = 0
            self._version += 1
        return answer.figures | {"step/rows": float(len(rows))}

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """Return the log-probability of each trained token of each row."""
        if not rows:
            return []
        _, arrays = self._ask(TrainerRequest(kind="log_probs", reference=reference), rows)
        cuts = np.cumsum([int(row.trained.sum()) for row in rows])[:-1]
        return np.split(arrays["log_probs"].astype(np.float32), cuts)

    def export(self, folder: Path, *, durable: bool = True) -> Path:
        """Write the model for an engine.

        :raises CheckpointError: if it can't be written.
        """
        self._ask(TrainerRequest(kind="export"))
        with atomic_folder(folder, durable=durable) as unfinished:
            for path in (self._folder / "weights").iterdir():
                shutil.move(path, unfinished / path.name)
        return folder

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write a checkpoint that resumes exactly: verl's own, and the position of the loop.

        :raises CheckpointError: if it can't be written.
        """
        state = {"version": self._version, "skipped": self._skipped, "position": dict(position)}
        with atomic_folder(folder) as unfinished:
            try:
                self._ask(TrainerRequest(kind="save", folder=str((unfinished / _VERL).absolute())))
            except VerlFailure as failure:
                if self._ended.is_set():
                    raise
                raise CheckpointError(f"{folder} can't be written: {failure}") from failure
            (unfinished / _STATE).write_bytes(msgspec.json.encode(state))
        return folder

    def load(self, folder: Path) -> dict[str, object]:
        """Restore a checkpoint; return the position of the loop.

        :raises CheckpointError: if it is incomplete, altered, or not one of verl's.
        """
        verify(folder)
        try:
            state: dict[str, Any] = msgspec.json.decode((folder / _STATE).read_bytes())
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: it is not a checkpoint of the verl backbone; use another one"
            ) from None
        self._ask(TrainerRequest(kind="load", folder=str((folder / _VERL).absolute())))
        self._version, self._skipped = state["version"], state["skipped"]
        return state["position"]

    @property
    def temporary(self) -> Path:
        """Temporary folder of verl and Ray; deleted by `close`."""
        return self._folder.parent

    def close(self) -> None:
        """Stop verl and everything it started."""
        # A dead process has already stopped.
        with self._stack, suppress(VerlFailure):
            if not self._ended.is_set():
                self._ask(TrainerRequest(kind="close"))
                self._ended.wait(_END_SECONDS)

    def _ask(
        self, request: TrainerRequest, rows: Sequence[Row] = ()
    ) -> tuple[TrainerResponse, dict[str, NDArray[Any]]]:
        """Send a request and wait for its response.

        :raises VerlFailure: if it fails, or verl has died.
        """
        order = self._folder / f"{self._number:08d}.order"
        answered = order.with_suffix(".answer")
        if not self._ended.is_set():
            write_message(order, request, pack_rows(rows) if rows else {})
        while not answered.exists():
            if self._ended.wait(_POLL_SECONDS) and not answered.exists():
                raise VerlFailure(f"verl died during {request.kind}: {last_error(self._log)}")
        answer, arrays = read_message(answered, TrainerResponse)
        self._number += 1
        for done in (order, answered):
            shutil.rmtree(done)
        if answer.error:
            raise VerlFailure(f"verl failed at {request.kind}: {answer.error}")
        return answer, arrays

    def _skip(self) -> None:
        self._skipped += 1
        _log.warning("skipped a non-finite step", in_a_row=self._skipped)
        if self._skipped > self.optimizer_settings.max_skipped_steps:
            raise RunStopped(
                StopCause.LEARNER,
                f"the loss or its gradient was not finite in {self._skipped} consecutive steps: "
                "lower optimizer.learning_rate, or check the rewards and log-probabilities of these rows",
            )


@contextmanager
def _running_verl(
    policy: PolicySettings, optimizer: OptimizerSettings, settings: VerlSettings
) -> Generator[tuple[Path, threading.Event, Path]]:
    """Start verl; yield the folder of requests, an event that is set when verl ends, and its log.

    :raises ConfigurationError: if the settings can't be used, or the Ray cluster does not answer.
    :raises VerlFailure: if it does not become ready, with its last error.
    """
    python = settings.interpreter()
    settings.check_cluster()
    with trainer_folder(settings.shared_folder) as base:
        log = settings.log or base / "verl.log"
        arguments = command_arguments(policy, optimizer, settings, base)
        command = [str(python), "-m", "verl.trainer.main_ppo", *arguments]
        environment = trainer_environment(base / "code", own_ray=not settings.ray_address)
        with running_trainer(
            "verl", command, environment, base, log, settings.start_seconds, VerlFailure
        ) as ended:
            yield base / "orders", ended, log
