"""Weights on their way from a trainer to an engine, and the check that both have the same."""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct

from agentflow.errors import AgentFlowError, ConfigurationError

TOLERANCES: Mapping[str, float] = MappingProxyType({"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1})
"""Maximum differences between log-probabilities of engine and trainer, by data type."""

_PROBE_TOKENS = 160
_STEP = 7919
_HEAD = struct.Struct("<Q")


class WeightsFailure(AgentFlowError):
    """Publishing weights failed, or engine and trainer disagree; the message names the weights that the engine has now."""


class Weights(Struct, frozen=True, kw_only=True):
    """Weights of a model on disk. See docs/serving.md."""

    folder: Path
    """Folder in Hugging Face format (`config.json`, `*.safetensors`). Keep it until other weights are published."""
    version: str
    """Version; tokens sampled with these weights carry it."""


class Probe(Struct, frozen=True, kw_only=True):
    """Reference for the check: a short text with the trainer's log-probabilities. See docs/serving.md."""

    tokens: tuple[int, ...]
    """Text. Make it longer than a block of the engine's cache (128 tokens on a CPU), so that a stale cache is detected."""
    logprobs: tuple[float, ...]
    """The trainer's log-probability of each token but the first, at temperature 1."""
    tolerance: float = TOLERANCES["float32"]
    """Maximum difference in nats; for a log-probability below -1, relative to its size."""

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or len(self.logprobs) != len(self.tokens) - 1:
            raise ConfigurationError(
                f"probe: {len(self.tokens)} tokens and {len(self.logprobs)} log-probabilities; "
                "give one for each token but the first"
            )


class Published(Struct, frozen=True, kw_only=True):
    """Result of publishing weights. See docs/serving.md."""

    version: str
    """Version of the weights."""
    difference: float = 0.0
    """Largest difference that the probe found, in nats."""
    restarted: bool = False
    """The engine was restarted; requests failed in the meantime."""


def probe_tokens(vocabulary: int, count: int = _PROBE_TOKENS) -> tuple[int, ...]:
    """Return a text for a probe: tokens from all over the vocabulary, always the same ones. See docs/serving.md."""
    return tuple(index * _STEP % vocabulary for index in range(1, count + 1))


def check_folder(folder: Path, before: Path) -> None:
    """Refuse a folder that the engine could load only in part: incomplete, or of another model than `before`.

    See docs/serving.md.

    :raises ConfigurationError: in that case.
    """
    shapes = _shapes(folder)
    try:
        known = _shapes(before)
    except ConfigurationError:
        # Loaded from elsewhere: a hub, or another machine's disk.
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
    if missing := _named_by_index(folder) - {file.name for file in files}:
        raise ConfigurationError(f"{folder}: {min(missing)} is missing; export the model again")
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
            raise ConfigurationError(f"{file}: it is incomplete; export the model again")
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    return shapes


class _Index(Struct):
    weight_map: dict[str, str]


def _named_by_index(folder: Path) -> set[str]:
    """Return the files that the index of a model names; a model of one file has no index."""
    try:
        index = msgspec.json.decode((folder / "model.safetensors.index.json").read_bytes(), type=_Index)
    except FileNotFoundError:
        return set()
    except (msgspec.MsgspecError, OSError) as error:
        raise ConfigurationError(
            f"{folder}: its index can't be read ({error}); export the model again"
        ) from error
    return set(index.weight_map.values())
