"""Messages between AgentFlow and a trainer in another environment, each a folder that appears atomically."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from agentflow.learner.packing import PER_TRAINED_TOKEN, Row

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name."""

READY = "ready"
"""File that exists once requests are accepted."""
_TYPES: Mapping[str, type[np.generic]] = {"weights": np.float64, "units": np.int32}
"""Types of arrays that are not float32."""
_MESSAGE = "message.json"
_ARRAYS = "arrays.npz"


class TrainerRequest(Struct, frozen=True, kw_only=True):
    """Request to a trainer; rows are sent beside it."""

    kind: Literal["step", "log_probs", "export", "save", "load", "close"]
    """Operation."""
    loss: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the loss of a step."""
    folder: str = ""
    """Folder to write or read."""
    reference: bool = False
    """Compute log-probabilities under the initial weights."""


class TrainerResponse(Struct, frozen=True, kw_only=True):
    """Response to a request; log-probabilities are sent beside it."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    """Figures of a step by name."""
    error: str = ""
    """Error, one line; empty: success."""


_T = TypeVar("_T", TrainerRequest, TrainerResponse)


def write_message(folder: Path, message: TrainerRequest | TrainerResponse, arrays: Arrays) -> None:
    """Write a message; readers see all of it or nothing."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / _MESSAGE).write_bytes(msgspec.json.encode(message))
    np.savez(unfinished / _ARRAYS, allow_pickle=False, **arrays)
    unfinished.rename(folder)


def read_message(folder: Path, kind: type[_T]) -> tuple[_T, dict[str, NDArray[Any]]]:
    """Read a message."""
    with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
        return msgspec.json.decode((folder / _MESSAGE).read_bytes(), type=kind), dict(arrays)


def pack_rows(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return rows as a few long arrays; `unpack_rows` restores them exactly.

    :raises ValueError: if only some rows have reference or proximal log-probabilities.
    """
    arrays: dict[str, NDArray[Any]] = {
        "lengths": np.array([len(row.ids) for row in rows], np.int64),
        "temperatures": np.array([row.temperature for row in rows], np.float64),
        "ids": _long([row.ids for row in rows], np.int32),
        "trained": _long([row.trained for row in rows], np.bool_),
    }
    for name in PER_TRAINED_TOKEN:
        arrays_by_row = [values for row in rows if (values := getattr(row, name)) is not None]
        if arrays_by_row and len(arrays_by_row) < len(rows):
            raise ValueError(f"some rows have {name} log-probabilities and some have none")
        if arrays_by_row:
            arrays[name] = _long(arrays_by_row, _TYPES.get(name, np.float32))
    return arrays


def unpack_rows(arrays: Arrays) -> list[Row]:
    """Return the rows of packed arrays."""
    if not len(arrays["lengths"]):
        return []
    ends = np.cumsum(arrays["lengths"])[:-1]
    trained = np.split(arrays["trained"], ends)
    cuts = np.cumsum([int(flags.sum()) for flags in trained])[:-1]
    parts: dict[str, list[Any]] = {
        name: np.split(arrays[name], cuts) for name in PER_TRAINED_TOKEN if name in arrays
    }
    return [
        Row(
            ids=ids,
            trained=flags,
            temperature=float(arrays["temperatures"][index]),
            **{name: values[index] for name, values in parts.items()},
        )
        for index, (ids, flags) in enumerate(zip(np.split(arrays["ids"], ends), trained, strict=True))
    ]


def _long(arrays: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays]).astype(kind, copy=False)
