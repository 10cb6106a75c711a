# pyright: reportUnknownMemberType=false
"""The processes that train together: one says what is done, all do it."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

__all__ = ["Ranks"]

_LONG = timedelta(days=30)
"""Others wait for the first one while it gathers episodes."""


class Ranks:
    """One process, or all that torchrun started."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        """How many there are."""
        self.rank = int(os.environ.get("RANK", "0")) if self.count > 1 else 0
        """Which of them this is; 0 is the one that says what is done."""
        self.place = int(os.environ.get("LOCAL_RANK", "0")) if self.count > 1 else 0
        """Which of those on this machine it is."""
        self._words: Any = None
        self._mesh: DeviceMesh | None = None
        self._own = False

    def meet(self, device: torch.device) -> None:
        """Wait for the others."""
        if self.count == 1:
            return
        if not dist.is_initialized():
            self._own = True
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self._words = dist.new_group(backend="gloo", timeout=_LONG)
        self._mesh = init_device_mesh(device.type, (self.count,))

    def part(self) -> None:
        """Leave the others."""
        if self._own and dist.is_initialized():
            dist.destroy_process_group()
            self._own = False

    def spread(self, policy: nn.Module, layers: list[nn.Module], dtype: torch.dtype) -> None:
        """Spread the weights over the ranks: each holds its part in float32 and computes with all in `dtype`."""
        if self._mesh is None:
            return
        # What goes into layers has their type already; casting it would copy the tree for each of them.
        precision = MixedPrecisionPolicy(
            param_dtype=None if dtype == torch.float32 else dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for module in [*layers, policy]:
            # The outermost, too: what it brought together for an evaluation would be stale after a step.
            sharded: Any = fully_shard(
                module, mesh=self._mesh, mp_policy=precision, reshard_after_forward=True
            )
            # Losses are parts of one sum: gradients are added, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            # Gloo knows sums only.
            sharded.set_force_sum_reduction_for_comms(True)

    def tell(self, said: object) -> Any:  # noqa: ANN401 - whatever was said
        """What rank 0 says, on every rank."""
        words = [said]
        if self.count > 1:
            dist.broadcast_object_list(words, src=0, group=self._words)
        return words[0]

    def everything(self, found: object) -> list[Any]:
        """What every rank found, in order, on every rank."""
        if self.count == 1:
            return [found]
        all_found: list[Any] = [None] * self.count
        dist.all_gather_object(all_found, found, group=self._words)
        return all_found
