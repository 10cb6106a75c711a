"""Weights on their way from a trainer to an engine, and the check that both have the same."""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, Self

import msgspec
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow._folder_files import open_file
from agentflow.errors import AgentFlowError, ConfigurationError

_HEAD = struct.Struct("<Q")
_MAX_HEAD = 100_000_000
"""Largest header of a file of weights, as for the library of the format."""
_LAYER = re.compile(r"\.\d+\.")


class Tolerance(NamedTuple):
    """Maximum differences between the log-probabilities of engine and trainer over sampled tokens, in nats."""

    mean: float
    """Of the mean difference."""
    rms: float
    """Of the root mean square of the differences."""


TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(1e-3, 5e-3),
        "float16": Tolerance(1e-2, 1e-1),
        "bfloat16": Tolerance(1e-2, 1e-1),
    }
)
"""Tolerances by data type: of the trainer or of the engine, whichever is wider. The largest difference has none: single tokens
differ by up to 0.5 nats in bfloat16."""
_NOISES = 3.0
"""Multiple of the differences before an update that is tolerated after it, in 16 bits."""
_SIGMAS = 4.0
"""Allowance for the sampling error of a figure over few tokens, in standard errors."""


class WeightsFailure(AgentFlowError):
    """Publishing weights failed, or engine and trainer disagree; the message names the weights that the engine has now."""


class Weights(Struct, frozen=True, kw_only=True):
    """Weights of a model on disk. See docs/serving.md."""

    folder: Path
    """Folder in Hugging Face format (`config.json`, `*.safetensors`). Keep it until other weights are published."""
    version: str
    """Version; tokens sampled with these weights carry it."""


class ProbeText(Struct, frozen=True, kw_only=True):
    """A text with the trainer's log-probabilities of its last tokens, at temperature 1."""

    tokens: tuple[int, ...]
    """All tokens."""
    begin: int
    """Position of the first compared token, at least 1."""
    logprobs: tuple[float, ...]
    """Log-probability of each compared token under the weights that are published."""
    before: tuple[float, ...] = ()
    """Log-probability of each under the weights before; empty: unknown."""

    def __post_init__(self) -> None:
        compared = len(self.tokens) - self.begin
        if self.begin < 1 or compared < 1 or {len(self.logprobs), len(self.before) or compared} != {compared}:
            raise ConfigurationError(
                f"probe: {compared} tokens are compared, but there are {len(self.logprobs)} log-probabilities and "
                f"{len(self.before)} before; give one for each token from `begin` on, which is at least 1"
            )


class Probe(Struct, frozen=True, kw_only=True):
    """Reference for the comparison of engine and trainer. Use texts that the engine sampled itself. See docs/serving.md."""

    texts: tuple[ProbeText, ...] = ()
    """Texts; about 200 compared tokens suffice."""
    dtype: str = "float32"
    """Data type that the trainer computes in."""
    noise: float = 0.0
    """Root mean square of the differences that was measured before the update, in nats; 0: unknown."""


class Agreement(Struct, frozen=True, kw_only=True):
    """Differences between the engine's and the trainer's log-probabilities of the same tokens, in nats."""

    tokens: int
    """Number of tokens."""
    mean: float
    """Mean of engine minus trainer: k1, an estimate of the KL divergence over tokens that the engine sampled."""
    rms: float
    """Root mean square."""
    k3: float
    """Mean of `r - log r - 1`, with `r` the trainer's probability over the engine's."""
    largest: float
    """Largest size. It has no limit."""

    @classmethod
    def of(cls, engine: Sequence[float], trainer: Sequence[float]) -> Self:
        """Compare the log-probabilities of the same tokens."""
        apart = [
            engine_value - trainer_value for engine_value, trainer_value in zip(engine, trainer, strict=True)
        ]
        count = len(apart)
        return cls(
            tokens=count,
            mean=sum(apart) / count,
            rms=math.sqrt(sum(difference * difference for difference in apart) / count),
            k3=sum(math.exp(min(-difference, 50.0)) + difference - 1 for difference in apart) / count,
            largest=max(map(abs, apart)),
        )

    def is_within(self, tolerance: Tolerance) -> bool:
        """Return whether mean and root mean square are within a tolerance, but for their sampling error."""
        # Written so that NaN fails.
        return abs(self.mean) <= tolerance.mean + _SIGMAS * self.rms / math.sqrt(
            self.tokens
        ) and self.rms <= tolerance.rms * (1 + _SIGMAS / math.sqrt(2 * self.tokens))


class LoadReport(Struct, frozen=True, kw_only=True):
    """Report of an engine about weights that it loaded."""

    dtype: str
    """Data type that the engine computes in."""
    tensors: int
    """Number of tensors in the files."""
    verified: int
    """Number of tensors that were compared with what the engine has; the others are parts of joined or sharded parameters."""
    stale: tuple[str, ...] = ()
    """Names of tensors that the engine did not take."""
    missing: tuple[str, ...] = ()
    """Names of tensors that the weights before had, and these lack."""


class Published(Struct, frozen=True, kw_only=True):
    """Result of publishing weights. See docs/serving.md."""

    version: str
    """Version of the weights."""
    agreement: Agreement | None = None
    """Agreement of engine and trainer over the probe; `None`: there was none."""
    is_nearer: bool | None = None
    """The engine is nearer to the new weights than to those before; `None`: not decidable, because the step moved the probe by
    less than three times the noise."""
    loaded: LoadReport | None = None
    """Comparison of every tensor; `None`: the engine was started without our extension."""
    restarted: str = ""
    """Reason for a restart of the engine, during which requests failed; empty: there was none."""


def tolerance_of(trainer: str, engine: str | None, noise: float = 0.0) -> Tolerance:
    """Return the wider tolerance of two data types; that of an unknown one is bfloat16's. See docs/serving.md.

    :param noise: root mean square of the differences before an update. It widens the tolerance of 16 bits, whose rounding depends on
        the processor; float32 has no such noise, so there it is a fault.
    """
    widest = TOLERANCES["bfloat16"]
    tolerance = max(TOLERANCES.get(dtype or "", widest) for dtype in (trainer, engine))
    if tolerance == TOLERANCES["float32"]:
        return tolerance
    return tolerance._replace(rms=max(tolerance.rms, _NOISES * noise))


def check_folder(folder: Path, before: Path) -> None:
    """Refuse a folder that the engine could load only in part: incomplete, or of another model than `before`.

    See docs/serving.md.

    :raises ConfigurationError: in that case.
    """
    shapes = _shapes(folder)
    try:
        known_shapes = _shapes(before)
    except ConfigurationError:
        # Loaded from elsewhere: a hub, or another machine's disk.
        return
    for name in shapes.keys() & known_shapes.keys():
        if shapes[name] != known_shapes[name]:
            raise ConfigurationError(
                f"{folder}: {name} is {shapes[name]}, the engine's is {known_shapes[name]}; publish the same model"
            )
    # Names of layers, without their numbers: other files of the same model may have further tensors, such as buffers.
    patterns = {_LAYER.sub(".*.", name) for name in shapes}
    if lost := sorted(
        name for name in known_shapes.keys() - shapes.keys() if _LAYER.sub(".*.", name) in patterns
    ):
        raise ConfigurationError(f"{folder}: {lost[0]} is missing; export the model again")
    if not shapes.keys() & known_shapes.keys():
        raise ConfigurationError(f"{folder}: no weight has a name of the engine's; publish the same model")


def _open(path: Path) -> BinaryIO:
    """Open a regular file; in the cache of a hub, the files of a model are links to another folder.

    :raises OSError: if there is none, or it is a FIFO or a device.
    """
    target = path.resolve()
    return open_file(target, target.parent)


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
            with _open(file) as opened:
                (size,) = _HEAD.unpack(opened.read(_HEAD.size))
                if size > _MAX_HEAD:
                    raise OSError(f"its header would have {size:,} bytes")
                head = msgspec.json.decode(opened.read(size), type=dict[str, msgspec.Raw])
            head.pop("__metadata__", None)
            tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in head.items()}
        except (struct.error, MemoryError, OSError, *DECODE_ERRORS) as error:
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
        with _open(folder / "model.safetensors.index.json") as file:
            index = msgspec.json.decode(file.read(_MAX_HEAD), type=_Index)
    except FileNotFoundError:
        return set()
    except (OSError, *DECODE_ERRORS) as error:
        raise ConfigurationError(
            f"{folder}: its index can't be read ({error}); export the model again"
        ) from error
    return set(index.weight_map.values())
