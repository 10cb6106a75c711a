# pyright: reportUnknownMemberType=false
"""Checkpoint of the local backbone: float32 weights, optimizer state, random generators, position of the loop."""

import random
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from agentflow.errors import ConfigurationError
from agentflow.learner._checkpoints import CheckpointError, atomic_folder, verify
from agentflow.learner.local._optimizer import Optimizer
from agentflow.learner.local._tensors import read_tensors, sharded_like, whole, write_tensors

STATE = "state.json"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of each weight."""


class BackboneState(Struct, frozen=True, kw_only=True):
    """State other than tensors."""

    version: int
    """Number of steps that changed the weights."""
    skipped: int
    """Number of consecutive skipped steps."""
    randomness: dict[str, Any]
    """States of the random generators."""
    position: dict[str, Any]
    """Position of the loop."""


def state_tensors(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights and optimizer state; a collective operation of all ranks."""
    for name, weight in optimizer.weights.items():
        yield f"weight/{name}", whole(weight)
        moments = optimizer.adam.state.get(weight, {})
        for moment in _MOMENTS:
            if moment in moments:
                yield f"{moment}/{name}", whole(moments[moment])


def write_state(folder: Path, state: BackboneState, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a checkpoint.

    :raises CheckpointError: if it can't be written.
    """
    with atomic_folder(folder) as place:
        write_tensors(place, tensors)
        (place / STATE).write_bytes(msgspec.json.encode(state))


def read_state(folder: Path) -> BackboneState:
    """Verify a checkpoint and return its state other than tensors.

    :raises CheckpointError: if it is incomplete or altered.
    """
    verify(folder)
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=BackboneState)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint of this backbone: {error}; use another one"
        ) from None


@torch.no_grad()
def restore_tensors(folder: Path, optimizer: Optimizer) -> None:
    """Restore the tensors of a checkpoint; a collective operation of all ranks.

    :raises ConfigurationError: if they are of another model; nothing has changed then.
    """
    found = dict(read_tensors(folder))
    stored = {
        name.removeprefix("weight/"): list(one.shape) for name, one in found.items() if name[:7] == "weight/"
    }
    own = {name: list(weight.shape) for name, weight in optimizer.weights.items()}
    if stored != own:
        differs = sorted(name for name in stored.keys() | own.keys() if stored.get(name) != own.get(name))
        raise ConfigurationError(
            f"{folder} is of another model: {len(differs)} weights differ, such as {differs[0]}; "
            "name the policy that it was saved with, or use another folder"
        )
    optimizer.adam.state.clear()
    for name, weight in optimizer.weights.items():
        weight.copy_(sharded_like(found[f"weight/{name}"], weight))
        moments = {moment: found[f"{moment}/{name}"] for moment in _MOMENTS if f"{moment}/{name}" in found}
        if moments:
            optimizer.adam.state[weight] = {
                moment: tensor if moment == "step" else sharded_like(tensor, weight)
                for moment, tensor in moments.items()
            }
    optimizer.round()


def randomness() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's random generators, as JSON."""
    kind, numbers, place, has_gauss, gauss = np.random.get_state()
    version, inner, following = random.getstate()
    return {
        "python": [version, list(inner), following],
        "numpy": [kind, np.asarray(numbers).tolist(), place, has_gauss, gauss],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
    }


def set_randomness(state: dict[str, Any]) -> None:
    """Restore the states of the random generators."""
    version, inner, following = state["python"]
    random.setstate((version, tuple(inner), following))
    kind, numbers, *rest = state["numpy"]
    np.random.set_state((kind, np.array(numbers, np.uint32), *rest))
    torch.set_rng_state(_bytes(state["torch"]))
    # Another machine may have other devices.
    for device, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_bytes(text), device)


def _text(state: Tensor) -> str:
    return b64encode(state.numpy().tobytes()).decode()


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)
