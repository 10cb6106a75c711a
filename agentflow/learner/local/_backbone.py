# pyright: reportUnknownMemberType=false
"""The local backbone: rows in, better weights out, on this machine."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from agentflow.errors import AgentFlowError, ConfigurationError, LossFailure, RunStopped, StopCause
from agentflow.learner._backbone import Figures
from agentflow.learner._checkpoints import CheckpointError
from agentflow.learner._policy import OptimiserSettings, PolicySettings
from agentflow.learner._rows import Row
from agentflow.learner.local._batches import Batches, batches
from agentflow.learner.local._export import adapter_weights, merged_weights, write_adapters, write_model
from agentflow.learner.local._model import Policy, device_of, find_model, load_policy
from agentflow.learner.local._optimiser import Optimiser
from agentflow.learner.local._randomness import randomness, set_randomness
from agentflow.learner.local._ranks import Ranks
from agentflow.learner.local._state import State, read_state, state_tensors, take_tensors, write_state
from agentflow.learner.losses import LossSettings, loss_of, merge_figures

__all__ = ["LocalBackbone"]

_log = structlog.get_logger(__name__)


class LocalBackbone:
    """A causal model that torch trains here. Started by torchrun, it is one model over all processes.

    Then the first process says what is done, and the others follow:

        backbone = LocalBackbone(policy, optimiser)
        if backbone.leads:
            ...
            backbone.close()
        else:
            backbone.follow()
    """

    def __init__(self, policy: PolicySettings, optimiser: OptimiserSettings | None = None) -> None:
        """Load the model.

        :raises ConfigurationError: if it can't be loaded, or can't be trained so.
        """
        self.settings = policy
        self.optimiser_settings = optimiser or OptimiserSettings()
        self._version = 0
        self._skipped = 0
        self._reference: Policy | None = None
        self._ranks = Ranks()
        self._device = device_of(policy, self._ranks.place)
        if policy.deterministic:
            # Without it cuBLAS has several streams of its own, and refuses.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if policy.threads:
            torch.set_num_threads(policy.threads)
        torch.manual_seed(policy.seed)
        self._ranks.meet(self._device)
        self.folder = find_model(policy)
        """Where the model came from."""
        self._dtype: torch.dtype = getattr(torch, policy.dtype)
        self._policy = self._load()
        trained = {
            name: weight for name, weight in self._policy.model.named_parameters() if weight.requires_grad
        }
        self._optimiser = Optimiser(trained, self.optimiser_settings)

    @property
    def version(self) -> int:
        """How many steps have changed the weights."""
        return self._version

    @property
    def leads(self) -> bool:
        """Whether this process says what is done; the others `follow`."""
        return self._ranks.rank == 0

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self._policy.model

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """One step of the optimiser on all of these rows; see `Backbone`."""
        return self._together("_step", list(rows), loss)

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """The log-probability of each trained token of each row; see `Backbone`."""
        return self._together("_log_probs", list(rows), reference)

    def export(self, folder: Path, *, adapters: bool = False) -> Path:
        """Write the model as an engine loads it; see `Backbone`.

        :param adapters: the adapters alone, instead of the model with them in it.
        """
        return self._together("_export", folder, adapters)

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write all that it takes to go on exactly from here; see `Backbone`."""
        return self._together("_save", folder, dict(position))

    def load(self, folder: Path) -> dict[str, object]:
        """Go on from what `save` wrote; see `Backbone`."""
        return self._together("_read", folder)

    def follow(self) -> None:
        """Do what the first process says, until it closes."""
        while (said := self._ranks.tell(None)) is not None:
            name, arguments = said
            try:
                with self._exact_kernels():
                    getattr(self, name)(*arguments)
            except AgentFlowError as error:
                # The first process has the same error, and says what comes of it.
                _log.debug("a step of all processes failed", problem=str(error))
        self._ranks.part()

    def close(self) -> None:
        """Let the others go."""
        if self._ranks.count > 1 and self.leads:
            self._ranks.tell(None)
        self._ranks.part()

    def _together(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what the method of that name gives
        if not self.leads:
            raise ConfigurationError(
                f"rank {self._ranks.rank} does what the first one says; call follow() on it"
            )
        if self._ranks.count > 1:
            self._ranks.tell((name, arguments))
        with self._exact_kernels():
            return getattr(self, name)(*arguments)

    def _load(self) -> Policy:
        # What is spread over ranks is held in float32, and computed with in the other.
        dtype = torch.float32 if self._ranks.count > 1 else self._dtype
        policy = load_policy(self.folder, self.settings, self._device, dtype)
        layers = [module for module in policy.modules() if _is_layer(module)]
        self._ranks.spread(policy, layers, self._dtype)
        return policy

    @contextmanager
    def _exact_kernels(self) -> Generator[None]:
        """Only kernels that give the same bits again, if that is wanted."""
        wanted = self.settings.deterministic
        filling: Any = torch.utils.deterministic
        before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
        if wanted or (wanted is None and self._device.type == "cpu"):
            torch.use_deterministic_algorithms(True)
            # Memory is filled to find who reads what nobody wrote; here it would only take time.
            filling.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0])
            filling.fill_uninitialized_memory = before[1]

    def _step(self, rows: list[Row], loss: LossSettings) -> Figures:
        if not rows:
            return {"step/rows": 0.0, "step/skipped": 0.0}
        try:
            figures, bad = self._accumulate(rows, loss)
        except torch.OutOfMemoryError as error:
            self._optimiser.forget()
            raise RunStopped(
                StopCause.LEARNER,
                f"{self._device} has no memory for a step: lower policy.token_budget, or train adapters (policy.lora)",
            ) from error
        except BaseException:
            # Half a gradient must not get into the next step.
            self._optimiser.forget()
            raise
        length = self._optimiser.length()
        figures["step/gradient_norm"] = length
        if bad or not np.isfinite(length):
            self._optimiser.forget()
            return figures | self._skip(
                "the loss" if bad else "the gradient", bad or self._search(rows, loss)
            )
        self._skipped = 0
        figures["step/rate"] = self._optimiser.move(self._version, length)
        self._version += 1
        return figures | {"step/skipped": 0.0}

    def _accumulate(self, rows: list[Row], loss: LossSettings) -> tuple[Figures, list[int]]:
        """Sum the gradient of all rows; figures, and the rows that have none."""
        whole = self._batches(rows)
        total, parts, bad = 0.0, list[Figures](), list[int]()
        for batch in whole.of(self._ranks.rank):
            scores = self._policy(batch.packed)
            try:
                value, figures = loss_of(scores.log_probs, batch.rows, loss, scores.entropy)
            except LossFailure as failure:
                bad += [batch.numbers[place] for place in failure.rows]
                # The other ranks wait for this one's part of the gradient.
                value, figures = scores.log_probs.sum() * 0.0, {}
            # A batch that only keeps the others company adds nothing.
            (value if batch.counts else value * 0.0).backward()
            if batch.counts:
                total += value.item()
                parts.append(figures)
        found = self._ranks.everything((total, parts, bad))
        figures = merge_figures(part for _, theirs, _ in found for part in theirs)
        figures |= whole.figures() | {"step/loss": sum(value for value, _, _ in found)}
        return figures, sorted({row for _, _, theirs in found for row in theirs})

    def _batches(self, rows: list[Row]) -> Batches:
        known = self._policy.plain.get_input_embeddings().weight.shape[0]
        for number, row in enumerate(rows):
            if not 0 <= row.ids.min() <= row.ids.max() < known:
                raise ConfigurationError(
                    f"row {number} has token {row.ids.max()}, and the model knows tokens 0 to {known - 1}: "
                    "it was sampled by another model"
                )
        return batches(rows, self.settings.token_budget, self._ranks.count)

    def _search(self, rows: list[Row], loss: LossSettings) -> list[int]:
        """The rows whose gradient alone is no number."""
        bad = list[int]()
        for number, row in enumerate(rows):
            failed = self._accumulate([row], loss)[1]
            if failed or not np.isfinite(self._optimiser.length()):
                bad.append(number)
            self._optimiser.forget()
        return bad

    def _skip(self, what: str, bad: list[int]) -> Figures:
        """Say what is left out and why."""
        self._skipped += 1
        _log.warning("a step was left out: no number", what=what, rows=bad[:16], in_a_row=self._skipped)
        if self._skipped > self.optimiser_settings.skips:
            raise RunStopped(
                StopCause.LEARNER,
                f"{what} was no finite number in {self._skipped} steps in a row (rows {_listed(bad)} of the last one): "
                "look at these rows, lower optimiser.rate, and go on from the last checkpoint",
            )
        figures = {"step/skipped": 1.0, "step/bad_rows": float(len(bad))}
        return figures | ({"step/first_bad_row": float(bad[0])} if bad else {})

    def _log_probs(self, rows: list[Row], reference: bool) -> list[NDArray[np.float32]]:
        if not rows:
            return []
        whole = self._batches(rows)
        mine = dict[int, NDArray[np.float32]]()
        with torch.no_grad(), self._as_it_began(reference) as policy:
            for batch in whole.of(self._ranks.rank):
                values = policy(batch.packed).log_probs.float().cpu().numpy()
                if batch.counts:
                    lines = zip(batch.numbers, values, batch.packed.mask, strict=True)
                    mine |= {number: line[mask] for number, line, mask in lines}
        found = dict[int, NDArray[np.float32]]()
        for theirs in self._ranks.everything(mine):
            found |= theirs
        return [found[number] for number in range(len(rows))]

    @contextmanager
    def _as_it_began(self, wanted: bool) -> Generator[Policy]:
        """The policy; or what it was before training: without its adapters, or a frozen copy."""
        if wanted and self.settings.lora:
            from peft.helpers import rescale_adapter_scale

            # To disable them would freeze them, and weights that are spread remember that.
            with rescale_adapter_scale(self._policy.model, 0.0):
                yield self._policy
        elif wanted:
            if self._reference is None:
                self._reference = self._load().requires_grad_(False)
            yield self._reference
        else:
            yield self._policy

    def _export(self, folder: Path, adapters: bool) -> Path:
        plain = self._policy.plain
        if adapters:
            weights = adapter_weights(self.model, self._dtype)
            self._written(weights, lambda weights: write_adapters(folder, self.model, weights))
        else:
            weights = merged_weights(plain, self._dtype)
            self._written(
                weights, lambda weights: write_model(folder, self.folder, plain, weights, self.settings)
            )
        return folder

    def _save(self, folder: Path, position: dict[str, object]) -> Path:
        state = State(
            version=self._version, skipped=self._skipped, randomness=randomness(), position=position
        )
        self._written(state_tensors(self._optimiser), lambda tensors: write_state(folder, state, tensors))
        return folder

    def _written(
        self, tensors: Iterator[tuple[str, Tensor]], write: Callable[[Iterator[tuple[str, Tensor]]], None]
    ) -> None:
        """Let the first process write what all bring together."""
        problem: CheckpointError | None = None
        if self.leads:
            try:
                write(tensors)
            except CheckpointError as error:
                problem = error
        for _ in tensors:
            # The others must not wait for one that has given up.
            pass
        if problem := self._ranks.tell(problem):
            raise problem

    def _read(self, folder: Path) -> dict[str, object]:
        state: Any = None
        if self.leads:
            try:
                state = read_state(folder)
            except CheckpointError as error:
                state = error
        state = self._ranks.tell(state)
        if not isinstance(state, State):
            raise state
        take_tensors(folder, self._optimiser)
        set_randomness(state.randomness)
        self._version, self._skipped = state.version, state.skipped
        return state.position


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, GradientCheckpointingLayer)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "") if numbers else "unknown"
