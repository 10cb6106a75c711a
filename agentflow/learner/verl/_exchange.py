"""What goes between AgentFlow and verl: orders and answers, each a folder that is whole or not there."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from agentflow.learner._rows import Row

__all__ = ["READY", "Answer", "Arrays", "Order", "pack_rows", "read_message", "unpack_rows", "write_message"]

Arrays = Mapping[str, NDArray[Any]]
"""Numbers by name."""

READY = "ready"
"""The file that is there when orders are taken."""
_EVERY = ("behaviour", "advantages", "weights", "units")
_SOME = ("reference", "proximal")
_MESSAGE = "message.json"
_ARRAYS = "arrays.npz"


class Order(Struct, frozen=True, kw_only=True):
    """What verl is to do next. Rows come beside it."""

    kind: Literal["step", "log_probs", "export", "save", "load", "close"]
    """What."""
    loss: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings of the loss of a step."""
    folder: str = ""
    """Where something is to be written or read."""
    reference: bool = False
    """Whether log-probabilities are wanted under the weights that training began with."""


class Answer(Struct, frozen=True, kw_only=True):
    """What came of an order. Log-probabilities come beside it."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    """What a step has to tell, by name."""
    error: str = ""
    """Why it can't be done, in one line."""


_T = TypeVar("_T", Order, Answer)


def write_message(folder: Path, message: Order | Answer, arrays: Arrays) -> None:
    """Write a message; nobody sees a half of it."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / _MESSAGE).write_bytes(msgspec.json.encode(message))
    np.savez(unfinished / _ARRAYS, allow_pickle=False, **arrays)
    unfinished.rename(folder)


def read_message(folder: Path, kind: type[_T]) -> tuple[_T, dict[str, NDArray[Any]]]:
    """Read a message that is there."""
    with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
        return msgspec.json.decode((folder / _MESSAGE).read_bytes(), type=kind), dict(arrays)


def pack_rows(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Rows as a few long arrays; `unpack_rows` gives them back, bit by bit.

    :raises ValueError: if only some rows have a reference or proximal log-probabilities.
    """
    arrays: dict[str, NDArray[Any]] = {
        "lengths": np.array([len(row.ids) for row in rows], np.int64),
        "temperatures": np.array([row.temperature for row in rows], np.float64),
        "ids": _long([row.ids for row in rows], np.int32),
        "trained": _long([row.trained for row in rows], np.bool_),
    }
    for name in _EVERY:
        kind = {"weights": np.float64, "units": np.int32}.get(name, np.float32)
        arrays[name] = _long([getattr(row, name) for row in rows], kind)
    for name in _SOME:
        given = [values for row in rows if (values := getattr(row, name)) is not None]
        if given and len(given) < len(rows):
            raise ValueError(f"some rows have {name} log-probabilities and some have none")
        if given:
            arrays[name] = _long(given, np.float32)
    return arrays


def unpack_rows(arrays: Arrays) -> list[Row]:
    """The rows that were packed."""
    if not len(arrays["lengths"]):
        return []
    ends = np.cumsum(arrays["lengths"])[:-1]
    trained = np.split(arrays["trained"], ends)
    cuts = np.cumsum([int(one.sum()) for one in trained])[:-1]
    parts = {name: np.split(arrays[name], cuts) for name in (*_EVERY, *_SOME) if name in arrays}
    return [
        Row(
            ids=ids,
            trained=which,
            temperature=float(arrays["temperatures"][place]),
            **{name: part[place] for name, part in parts.items()},
        )
        for place, (ids, which) in enumerate(zip(np.split(arrays["ids"], ends), trained, strict=True))
    ]


def _long(arrays: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays]).astype(kind, copy=False)
