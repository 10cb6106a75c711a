"""Weights as they go from a trainer to an engine, and how both see that they have the same."""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct

from agentflow.errors import AgentFlowError, ConfigurationError

__all__ = ["TOLERANCES", "Probe", "Published", "Weights", "WeightsFailure", "check_folder", "probe_tokens"]

TOLERANCES: Mapping[str, float] = MappingProxyType({"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1})
"""How far log-probabilities of engine and trainer may differ, by the type of their numbers."""

_PROBE_TOKENS = 160
_STEP = 7919
_HEAD = struct.Struct("<Q")


class WeightsFailure(AgentFlowError):
    """New weights did not get into an engine, or it computes something else; one line says what it has now."""


class Weights(Struct, frozen=True, kw_only=True):
    """The weights of a model on disk."""

    folder: Path
    """As Hugging Face keeps them: `config.json` and `*.safetensors`. It must stay until others are published."""
    version: str
    """What they are called; tokens that they draw carry it."""


class Probe(Struct, frozen=True, kw_only=True):
    """A short text, and what the trainer makes of it: the engine must say the same once it has the weights."""

    tokens: tuple[int, ...]
    """The text; longer than a block of the engine's cache (128 tokens on a CPU), or an old cache is not seen."""
    logprobs: tuple[float, ...]
    """The trainer's log-probability of each token but the first, at temperature 1."""
    tolerance: float = TOLERANCES["float32"]
    """How far each may be off, in nats; one below -1 in parts of its size, for so exact are the numbers it comes from."""

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or len(self.logprobs) != len(self.tokens) - 1:
            raise ConfigurationError(
                f"probe: {len(self.tokens)} tokens and {len(self.logprobs)} log-probabilities; "
                "give one for each token but the first"
            )


class Published(Struct, frozen=True, kw_only=True):
    """Weights that an engine has."""

    version: str
    """What they are called."""
    difference: float = 0.0
    """The largest difference that the probe found."""
    restarted: bool = False
    """The engine was started anew with them: requests were refused meanwhile."""


def probe_tokens(vocabulary: int, count: int = _PROBE_TOKENS) -> tuple[int, ...]:
    """A text for a probe: words from all over the vocabulary, the same each time."""
    return tuple(index * _STEP % vocabulary for index in range(1, count + 1))


def check_folder(folder: Path, before: Path) -> None:
    """Refuse what an engine would choke on halfway: what is not whole, or of another model than `before`.

    :raises ConfigurationError: in one line.
    """
    shapes = _shapes(folder)
    try:
        known = _shapes(before)
    except ConfigurationError:
        # It was read from elsewhere: a hub, another machine's disk.
        return
    for name in shapes.keys() & known.keys():
        if shapes[name] != known[name]:
            raise ConfigurationError(
                f"{folder}: {name} is {shapes[name]}, the engine's is {known[name]}; publish the same model"
            )
    if not shapes.keys() & known.keys():
        raise ConfigurationError(f"{folder}: no weight has a name of the engine's; publish the same model")


class _Tensor(Struct):
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder}: no config.json with *.safetensors; export the model there first")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with file.open("rb") as opened:
                (size,) = _HEAD.unpack(opened.read(_HEAD.size))
                head = msgspec.json.decode(opened.read(size), type=dict[str, msgspec.Raw])
            head.pop("__metadata__", None)
            tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in head.items()}
        except (struct.error, msgspec.MsgspecError, MemoryError, OSError) as error:
            raise ConfigurationError(f"{file}: it can't be read ({error}); export the model again") from error
        end = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
        if file.stat().st_size != _HEAD.size + size + end:
            raise ConfigurationError(f"{file}: it is not whole; export the model again")
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    return shapes
