"""What the loop asks of whatever turns rows into better weights; no torch is needed to read this."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from agentflow.learner._rows import Row
    from agentflow.learner.losses import LossSettings

__all__ = ["Backbone", "Figures", "with_proximal", "with_reference"]

Figures = dict[str, float]
"""What a step has to tell, by name: `step/loss`, `step/gradient_norm`, `policy/…`."""


class Backbone(Protocol):
    """A policy, and how it is made better. Everything here blocks: a loop that serves others calls it in a thread."""

    @property
    def version(self) -> int:
        """How many steps have changed the weights; an exported folder and a served model carry this number."""
        ...

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """One step of the optimiser on all of these rows.

        A loss or gradient that is no number changes nothing: the figures then hold `step/skipped` 1, and which rows.

        :raises RunStopped: if that happens in too many steps in a row.
        """
        ...

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """The log-probability of each trained token of each row, under the weights as they are.

        :param reference: under the weights that training began with.
        """
        ...

    def export(self, folder: Path) -> Path:
        """Write the model as an engine loads it: weights, configuration, tokenizer. The folder is whole or not there.

        :raises CheckpointError: if it can't be written.
        """
        ...

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write all that it takes to go on exactly from here. The folder is whole or not there.

        :param position: where the loop stands; JSON. It comes back from `load`.
        :raises CheckpointError: if it can't be written; everything goes on as if it had not been tried.
        """
        ...

    def load(self, folder: Path) -> dict[str, object]:
        """Go on from what `save` wrote; the loop's position.

        :raises CheckpointError: if it is not whole, was altered, or is of another model; nothing has changed then.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def with_reference(backbone: Backbone, rows: Sequence[Row]) -> list[Row]:
    """Rows that know what the weights that training began with make of them."""
    found = backbone.log_probs(rows, reference=True)
    return [replace(row, reference=values) for row, values in zip(rows, found, strict=True)]


def with_proximal(backbone: Backbone, rows: Sequence[Row]) -> list[Row]:
    """Rows that know what the weights make of them as they are now, before the first of several steps."""
    found = backbone.log_probs(rows)
    return [replace(row, proximal=values) for row, values in zip(rows, found, strict=True)]
