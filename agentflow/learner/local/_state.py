# pyright: reportUnknownMemberType=false
"""All that it takes to go on exactly: weights in float32, the optimiser, randomness, where the loop stands."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from agentflow.errors import ConfigurationError
from agentflow.learner._checkpoints import CheckpointError, verify, whole_folder
from agentflow.learner.local._optimiser import Optimiser
from agentflow.learner.local._tensors import as_spread, read_tensors, whole, write_tensors

__all__ = ["State", "read_state", "state_tensors", "take_tensors", "write_state"]

STATE = "state.json"
_MOVES = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW remembers of each weight."""


class State(Struct, frozen=True, kw_only=True):
    """What is no tensor."""

    version: int
    """Steps that changed the weights."""
    skipped: int
    """Steps in a row, up to now, that were left out."""
    randomness: dict[str, Any]
    """Where the generators of random numbers stand."""
    position: dict[str, Any]
    """Where the loop stands."""


def state_tensors(optimiser: Optimiser) -> Iterator[tuple[str, Tensor]]:
    """Weights and what the optimiser remembers of them, whole; all ranks do this together."""
    for name, weight in optimiser.weights.items():
        yield f"weight/{name}", whole(weight)
        remembered = optimiser.adam.state.get(weight, {})
        for move in _MOVES:
            if move in remembered:
                yield f"{move}/{name}", whole(remembered[move])


def write_state(folder: Path, state: State, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write it.

    :raises CheckpointError: if it can't be written.
    """
    with whole_folder(folder) as place:
        write_tensors(place, tensors)
        (place / STATE).write_bytes(msgspec.json.encode(state))


def read_state(folder: Path) -> State:
    """What is no tensor, once everything is found to be as it was written.

    :raises CheckpointError: if it is not.
    """
    verify(folder)
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=State)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{folder} is no checkpoint of this backbone: {error}; use another one"
        ) from None


@torch.no_grad()
def take_tensors(folder: Path, optimiser: Optimiser) -> None:
    """Go on from these tensors; all ranks do this together.

    :raises ConfigurationError: if they are of another model; nothing has changed then.
    """
    found = dict(read_tensors(folder))
    theirs = {
        name.removeprefix("weight/"): list(one.shape) for name, one in found.items() if name[:7] == "weight/"
    }
    ours = {name: list(weight.shape) for name, weight in optimiser.weights.items()}
    if theirs != ours:
        differs = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
        raise ConfigurationError(
            f"{folder} is of another model: {len(differs)} weights differ, such as {differs[0]}; "
            "name the policy that it was saved with, or start in another folder"
        )
    optimiser.adam.state.clear()
    for name, weight in optimiser.weights.items():
        weight.copy_(as_spread(found[f"weight/{name}"], weight))
        remembered = {move: found[f"{move}/{name}"] for move in _MOVES if f"{move}/{name}" in found}
        if remembered:
            optimiser.adam.state[weight] = {
                move: tensor if move == "step" else as_spread(tensor, weight)
                for move, tensor in remembered.items()
            }
    optimiser.round()
