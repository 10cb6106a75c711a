# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Read and write tensors in portions, and gather and shard them over ranks."""

import errno
import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

PORTION = 2**30
"""Maximum number of bytes gathered before they are written."""
_ERRNO = re.compile(r"os error (\d+)")


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor on the CPU; a collective operation of all ranks."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a full tensor, sharded like another one."""
    tensor = tensor.to(like.device, like.dtype)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def write_tensors(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors into several files."""
    portion = dict[str, Tensor]()
    files = 0
    for name, tensor in tensors:
        # A tied tensor is written again.
        portion[name] = tensor.contiguous().clone()
        if sum(one.nbytes for one in portion.values()) >= PORTION:
            _write(portion, folder, files)
            portion, files = {}, files + 1
    if portion:
        _write(portion, folder, files)


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Read tensors written by `write_tensors`."""
    for path in sorted(folder.glob("state-*.safetensors")):
        yield from load_file(path).items()


def _write(portion: dict[str, Tensor], folder: Path, number: int) -> None:
    with saving():
        save_file(portion, folder / f"state-{number:05d}.safetensors")


@contextmanager
def saving() -> Generator[None]:
    """Turn disk errors of safetensors into `OSError`."""
    try:
        yield
    except SafetensorError as error:
        found = _ERRNO.search(str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number)) from error
