# pyright: reportUnknownMemberType=false
"""The processes of one training: the first one decides, all compute."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from agentflow.learner._rows import Row
from agentflow.learner.packing import Packed, pack


def micro_batches(rows: Sequence[Row], budget: int, ranks: int = 1) -> list[Packed]:
    """Pack rows into micro-batches of at most `budget` distinct tokens, if possible no fewer than ranks.

    A longer row gets a micro-batch of its own: it can't be cut.
    """
    longest = max(len(row.ids) for row in rows)
    budget = max(budget, longest)
    packed = pack(rows, budget)
    while len(packed) < ranks and budget > longest:
        budget = max(longest, max(map(len, packed)) // 2)
        packed = pack(rows, budget)
    return packed


def share_of(packed: Sequence[Packed], ranks: int, rank: int) -> list[tuple[Packed, bool]]:
    """Return the micro-batches of a rank; every rank computes the same number of them at the same time.

    Loads are balanced: the largest micro-batch first, to the rank with the least. A rank with fewer repeats the smallest
    one, marked `False`: it takes part in the collectives and adds nothing.
    """
    sizes = [len(one) for one in packed]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        lightest = loads.index(min(loads))
        shares[lightest].append(number)
        loads[lightest] += sizes[number]
    missing = max(map(len, shares)) - len(shares[rank])
    return [(packed[number], True) for number in shares[rank]] + [(min(packed, key=len), False)] * missing


def batch_figures(rows: Sequence[Row], packed: Sequence[Packed]) -> dict[str, float]:
    """Return the size of a step."""
    computed = sum(map(len, packed))
    return {
        "step/rows": float(len(rows)),
        "step/batches": float(len(packed)),
        "step/trained_tokens": float(sum(int(row.trained.sum()) for row in rows)),
        "step/forwarded_tokens": float(computed),
        "step/tree_token_ratio": computed / sum(len(row.ids) for row in rows),
    }


_TIMEOUT = timedelta(days=30)
"""The others wait for the first process while it collects episodes."""


class Ranks:
    """This process alone, or all processes that torchrun started."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        """Number of processes."""
        self.rank = int(os.environ.get("RANK", "0")) if self.count > 1 else 0
        """Rank of this process; rank 0 decides."""
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0")) if self.count > 1 else 0
        """Rank of this process on its machine."""
        self._group: Any = None
        self._mesh: DeviceMesh | None = None
        self._own = False

    def join(self, device: torch.device) -> None:
        """Join the process group."""
        if self.count == 1:
            return
        if not dist.is_initialized():
            self._own = True
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._mesh = init_device_mesh(device.type, (self.count,))

    def leave(self) -> None:
        """Leave the process group."""
        if self._own and dist.is_initialized():
            dist.destroy_process_group()
            self._own = False

    def shard(self, policy: nn.Module, layers: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Shard the weights over the ranks (FSDP): shards in float32, computation in `dtype`."""
        if self._mesh is None:
            return
        # Inputs of layers already have the right type; a cast would copy the tree for each layer.
        precision = MixedPrecisionPolicy(
            param_dtype=None if dtype == torch.float32 else dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for module in [*layers, policy]:
            # Including the outermost module: weights gathered for an evaluation would be stale after a step.
            sharded: Any = fully_shard(
                module, mesh=self._mesh, mp_policy=precision, reshard_after_forward=True
            )
            # Losses are parts of one sum: gradients are added, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            # Gloo supports only sums.
            sharded.set_force_sum_reduction_for_comms(True)

    def broadcast(self, value: object) -> Any:  # noqa: ANN401 - any value
        """Return the value of rank 0 on every rank."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def gather(self, found: object) -> list[Any]:
        """Return the values of all ranks, in order, on every rank."""
        if self.count == 1:
            return [found]
        all_found: list[Any] = [None] * self.count
        dist.all_gather_object(all_found, found, group=self._group)
        return all_found
