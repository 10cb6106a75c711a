# pyright: reportUnknownMemberType=false
"""The generators of random numbers of this process, kept and set."""

import random
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["randomness", "set_randomness"]


def randomness() -> dict[str, Any]:
    """Where Python's, numpy's and torch's generators stand; JSON."""
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
    """Go on from there."""
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
