"""Interface between the training loop and its backbones; it does not import torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from agentflow.learner.losses import LossSettings
    from agentflow.learner.packing import Row


Figures = dict[str, float]
"""Figures of a step by name: `step/loss`, `step/gradient_norm`, `policy/…`."""


class Backbone(Protocol):
    """Trains a policy. All methods block: call them in a thread. See docs/backbones.md."""

    @property
    def version(self) -> int:
        """Number of steps that changed the weights; exported and served models carry it."""
        ...

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """Make one optimizer step on all rows.

        A non-finite loss or gradient changes nothing; the figures then contain `step/skipped` 1 and the rows.

        :raises RunStopped: if too many consecutive steps were skipped.
        """
        ...

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """Return the log-probability of each trained token of each row, under the current weights.

        :param reference: use the initial weights instead.
        """
        ...

    def export(self, folder: Path, *, durable: bool = True) -> Path:
        """Write the model for an engine: weights, configuration, tokenizer. The folder appears atomically.

        :param durable: survive a power failure; weights that only an engine reads need not.
        :raises CheckpointError: if it can't be written.
        """
        ...

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write a checkpoint that resumes exactly. The folder appears atomically.

        :param position: position of the loop, JSON; `load` returns it.
        :raises CheckpointError: if it can't be written; training can continue.
        """
        ...

    def load(self, folder: Path) -> dict[str, object]:
        """Restore a checkpoint; return the position of the loop.

        :raises CheckpointError: if it is incomplete, altered, or of another model; nothing has changed then.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class ScoringBackbone(Backbone, Protocol):
    """Backbone that also keeps the log-probabilities of its last step, which a trainer computes anyway."""

    @property
    def step_log_probs(self) -> list[NDArray[np.float32]]:
        """Log-probability of each trained token of each row in the loss of the last step; empty before the first."""
        ...


@runtime_checkable
class ReferringBackbone(Backbone, Protocol):
    """Backbone whose steps compute the log-probabilities of the reference policy themselves."""

    computes_reference: bool
    """True."""


def with_reference(backbone: Backbone, rows: Sequence[Row]) -> list[Row]:
    """Return rows with log-probabilities under the initial weights, unless the backbone's steps compute them."""
    if isinstance(backbone, ReferringBackbone):
        return list(rows)
    log_probs = backbone.log_probs(rows, reference=True)
    return [replace(row, reference=values) for row, values in zip(rows, log_probs, strict=True)]


def with_proximal(backbone: Backbone, rows: Sequence[Row]) -> list[Row]:
    """Return rows with log-probabilities under the current weights, before the first of several steps."""
    log_probs = backbone.log_probs(rows)
    return [replace(row, proximal=values) for row, values in zip(rows, log_probs, strict=True)]
