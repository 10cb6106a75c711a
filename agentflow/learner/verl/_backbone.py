"""The verl backbone: our rows, verl's optimiser, Ray's processes."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import Figures
from agentflow.learner._checkpoints import CheckpointError, verify, whole_folder
from agentflow.learner._policy import OptimiserSettings, PolicySettings
from agentflow.learner._rows import Row
from agentflow.learner.losses import LossSettings
from agentflow.learner.verl._exchange import Answer, Order, pack_rows, read_message, write_message
from agentflow.learner.verl._process import VerlFailure, last_words, running_verl
from agentflow.learner.verl._settings import VerlSettings

if TYPE_CHECKING:
    from threading import Event

__all__ = ["VerlBackbone"]

_POLL_SECONDS = 0.02
_END_SECONDS = 60.0
_STATE = "agentflow.json"
_VERL = "verl"
_log = structlog.get_logger(__name__)


class VerlBackbone:
    """A policy that stock verl trains in an environment of its own; `Backbone` says what it does.

    verl trains rows, not trees: what rows share is computed for each.
    """

    def __init__(
        self,
        policy: PolicySettings,
        optimiser: OptimiserSettings | None = None,
        settings: VerlSettings | None = None,
    ) -> None:
        """Start verl and wait until it is ready, which takes a minute or more.

        :raises ConfigurationError: if verl is not there, or can't do what is wanted.
        :raises VerlFailure: if it does not become ready.
        """
        self.optimiser_settings = optimiser or OptimiserSettings()
        self._version = 0
        self._skipped = 0
        self._number = 0
        self._stack = ExitStack()
        self._folder: Path
        self._ended: Event
        self._folder, self._ended, self._log = self._stack.enter_context(
            running_verl(policy, self.optimiser_settings, settings or VerlSettings())
        )

    @property
    def version(self) -> int:
        """How many steps have changed the weights."""
        return self._version

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """One step of verl's optimiser on all of these rows.

        :raises ConfigurationError: if the loss wants what verl's step can't give.
        :raises RunStopped: if too many steps in a row had a loss or gradient that is no number.
        """
        if not rows:
            return {"step/rows": 0.0, "step/skipped": 0.0}
        if loss.entropy:
            raise ConfigurationError("loss.entropy: verl's step gives us none; set it to 0")
        if len({row.temperature for row in rows}) > 1:
            raise ConfigurationError("temperature: verl's step has one for all rows; sample all at the same")
        answer, _ = self._ask(Order(kind="step", loss=loss.model_dump(mode="json")), rows)
        if answer.figures["step/skipped"]:
            self._leave_out()
        else:
            self._skipped = 0
            self._version += 1
        return answer.figures | {"step/rows": float(len(rows))}

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """The log-probability of each trained token of each row."""
        if not rows:
            return []
        _, arrays = self._ask(Order(kind="log_probs", reference=reference), rows)
        cuts = np.cumsum([int(row.trained.sum()) for row in rows])[:-1]
        return np.split(arrays["log_probs"].astype(np.float32), cuts)

    def export(self, folder: Path) -> Path:
        """Write the model as an engine loads it.

        :raises CheckpointError: if it can't be written.
        """
        self._ask(Order(kind="export"))
        with whole_folder(folder) as unfinished:
            for path in (self._folder / "weights").iterdir():
                shutil.move(path, unfinished / path.name)
        return folder

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write all that it takes to go on exactly from here: verl's own checkpoint, and our position.

        :raises CheckpointError: if it can't be written.
        """
        state = {"version": self._version, "skipped": self._skipped, "position": dict(position)}
        with whole_folder(folder) as unfinished:
            try:
                self._ask(Order(kind="save", folder=str((unfinished / _VERL).absolute())))
            except VerlFailure as failure:
                if self._ended.is_set():
                    raise
                raise CheckpointError(f"{folder} can't be written: {failure}") from failure
            (unfinished / _STATE).write_bytes(msgspec.json.encode(state))
        return folder

    def load(self, folder: Path) -> dict[str, object]:
        """Go on from what `save` wrote; the loop's position.

        :raises CheckpointError: if it is not whole, was altered, or is not verl's.
        """
        verify(folder)
        try:
            state: dict[str, Any] = msgspec.json.decode((folder / _STATE).read_bytes())
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: it is not of the verl backbone; use another checkpoint"
            ) from None
        self._ask(Order(kind="load", folder=str((folder / _VERL).absolute())))
        self._version, self._skipped = state["version"], state["skipped"]
        return state["position"]

    @property
    def temporary(self) -> Path:
        """Where verl and Ray keep their files; gone once it is closed."""
        return self._folder.parent

    def close(self) -> None:
        """End verl, and everything that it started."""
        # Who is dead has ended.
        with self._stack, suppress(VerlFailure):
            if not self._ended.is_set():
                self._ask(Order(kind="close"))
                self._ended.wait(_END_SECONDS)

    def _ask(self, order: Order, rows: Sequence[Row] = ()) -> tuple[Answer, dict[str, NDArray[Any]]]:
        """Give an order and wait until it is done.

        :raises VerlFailure: if it can't be done, or verl has died.
        """
        place = self._folder / f"{self._number:08d}.order"
        answered = place.with_suffix(".answer")
        if not self._ended.is_set():
            write_message(place, order, pack_rows(rows) if rows else {})
        while not answered.exists():
            if self._ended.wait(_POLL_SECONDS) and not answered.exists():
                raise VerlFailure(f"verl has died during {order.kind}: {last_words(self._log)}")
        answer, arrays = read_message(answered, Answer)
        self._number += 1
        for done in (place, answered):
            shutil.rmtree(done)
        if answer.error:
            raise VerlFailure(f"verl can't do {order.kind}: {answer.error}")
        return answer, arrays

    def _leave_out(self) -> None:
        self._skipped += 1
        _log.warning("a step was left out: no number", in_a_row=self._skipped)
        if self._skipped > self.optimiser_settings.skips:
            raise RunStopped(
                StopCause.LEARNER,
                f"the loss or its gradient was no finite number in {self._skipped} steps in a row: "
                "lower optimiser.rate, or look at the rewards and log-probabilities of these rows",
            )
