# pyright: reportUnknownMemberType=false
"""The local backbone: trains a model with torch on this machine, in one process or in several ranks."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from agentflow.errors import AgentFlowError, ConfigurationError, LossFailure, RunStopped, StopCause
from agentflow.learner._backbone import Figures
from agentflow.learner._checkpoints import CheckpointError
from agentflow.learner._policy import OptimizerSettings, PolicySettings, find_model
from agentflow.learner.local._model import (
    BackboneState,
    Optimizer,
    Policy,
    adapter_weights,
    device_of,
    load_policy,
    merged_weights,
    randomness,
    read_state,
    restore_tensors,
    set_randomness,
    state_tensors,
    write_adapters,
    write_model,
    write_state,
)
from agentflow.learner.losses import LossSettings, loss_of, merge_figures
from agentflow.learner.packing import Packed, Row, pack

_SMALL_BUDGET = 1024
"""Tokens of a micro-batch on a CPU: with 16,384, a step of 135 million weights on 2,100 tokens takes a quarter longer."""
_REPEATED = 1.05
"""Tokens that small micro-batches may compute, as a multiple of those of large ones: cutting a tree repeats its beginning."""


def micro_batches(
    rows: Sequence[Row], budget: int, ranks: int = 1, *, by_row: bool = False, prefer_small: bool = False
) -> list[Packed]:
    """Pack rows into micro-batches of at most `budget` tokens to compute, if possible no fewer than ranks.

    A longer row gets a micro-batch of its own: it can't be cut.

    :param prefer_small: take the smallest micro-batches that repeat few tokens, as is quickest on a CPU.
    """
    longest = max(len(row.ids) for row in rows)
    budget = max(budget, longest)
    packed = pack(rows, budget, by_row=by_row)
    size, limit = max(_SMALL_BUDGET, longest), _REPEATED * sum(map(len, packed))
    while prefer_small and size < max(map(len, packed)):
        smaller = pack(rows, size, by_row=by_row)
        if sum(map(len, smaller)) <= limit:
            budget, packed = size, smaller
        size *= 2
    while len(packed) < ranks and budget > longest:
        budget = max(longest, max(map(len, packed)) // 2)
        packed = pack(rows, budget, by_row=by_row)
    return packed


def share_of(packed: Sequence[Packed], ranks: int, rank: int) -> list[tuple[Packed, bool]]:
    """Return the micro-batches of a rank; every rank computes the same number of them at the same time.

    Loads are balanced: the largest micro-batch first, to the rank with the least. A rank with fewer repeats the smallest
    one, marked `False`: it takes part in the collectives and adds nothing.
    """
    sizes = [len(batch) for batch in packed]
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

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks, in order, on every rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self._group)
        return values


_log = structlog.get_logger(__name__)


class LocalBackbone:
    """Trains a causal model with torch. Started by torchrun, all processes hold one sharded model.

    The first process calls the methods, and the others follow::

        backbone = LocalBackbone(policy, optimizer)
        if backbone.leads:
            ...
            backbone.close()
        else:
            backbone.follow()

    See docs/backbones.md.
    """

    def __init__(self, policy: PolicySettings, optimizer: OptimizerSettings | None = None) -> None:
        """Load the model.

        :raises ConfigurationError: if it can't be loaded, or can't be trained with these settings.
        """
        self.optimizer_settings = optimizer or OptimizerSettings()
        self._version = 0
        self._skipped = 0
        self._step_log_probs: list[NDArray[np.float32]] = []
        self._reference: Policy | None = None
        self._ranks = Ranks()
        self._device = device_of(policy, self._ranks.local_rank)
        if policy.dtype == "auto":
            dtype = "float32" if self._device.type == "cpu" else "bfloat16"
            policy = policy.model_copy(update={"dtype": dtype})
        self.settings = policy
        if policy.deterministic:
            # Required by cuBLAS for deterministic kernels.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if policy.threads:
            torch.set_num_threads(policy.threads)
        torch.manual_seed(policy.seed)
        self._ranks.join(self._device)
        self.folder = find_model(policy)
        """Folder of the initial model."""
        self._dtype: torch.dtype = getattr(torch, policy.dtype)
        self._policy = self._load()
        trained = {
            name: weight for name, weight in self._policy.model.named_parameters() if weight.requires_grad
        }
        self._optimizer = Optimizer(trained, self.optimizer_settings)

    @property
    def version(self) -> int:
        """Number of steps that changed the weights."""
        return self._version

    @property
    def step_log_probs(self) -> list[NDArray[np.float32]]:
        """Log-probabilities in the loss of the last step; see `ScoringBackbone`."""
        return self._step_log_probs

    @property
    def leads(self) -> bool:
        """True in the first process; the others `follow`."""
        return self._ranks.rank == 0

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self._policy.model

    def step(self, rows: Sequence[Row], loss: LossSettings) -> Figures:
        """Make one optimizer step on all rows; see `Backbone`."""
        return self._together("_step", list(rows), loss)

    def log_probs(self, rows: Sequence[Row], *, reference: bool = False) -> list[NDArray[np.float32]]:
        """Return the log-probability of each trained token of each row; see `Backbone`."""
        return self._together("_log_probs", list(rows), reference)

    def export(self, folder: Path, *, adapters: bool = False, durable: bool = True) -> Path:
        """Write the model for an engine; see `Backbone`.

        :param adapters: write only the adapters, instead of the merged model.
        """
        return self._together("_export", folder, adapters, durable)

    def save(self, folder: Path, position: Mapping[str, object]) -> Path:
        """Write a checkpoint; see `Backbone`."""
        return self._together("_save", folder, dict(position))

    def load(self, folder: Path) -> dict[str, object]:
        """Restore a checkpoint; see `Backbone`."""
        return self._together("_restore", folder)

    def follow(self) -> None:
        """Repeat what the first process does, until it closes."""
        while (call := self._ranks.broadcast(None)) is not None:
            name, arguments = call
            try:
                with self._exact_kernels():
                    getattr(self, name)(*arguments)
            except AgentFlowError as error:
                # The first process has the same error and handles it.
                _log.debug("a step of all processes failed", problem=str(error))
        self._ranks.leave()

    def close(self) -> None:
        """Release the other processes."""
        if self._ranks.count > 1 and self.leads:
            self._ranks.broadcast(None)
        self._ranks.leave()

    def _together(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what the method of that name gives
        if not self.leads:
            raise ConfigurationError(
                f"rank {self._ranks.rank} follows the first process; call follow() on it"
            )
        if self._ranks.count > 1:
            self._ranks.broadcast((name, arguments))
        with self._exact_kernels():
            return getattr(self, name)(*arguments)

    def _load(self) -> Policy:
        # Sharded weights are held in float32 and computed in the other precision.
        dtype = torch.float32 if self._ranks.count > 1 else self._dtype
        policy = load_policy(self.folder, self.settings, self._device, dtype)
        layers = [module for module in policy.modules() if isinstance(module, GradientCheckpointingLayer)]
        self._ranks.shard(policy, layers, self._dtype)
        return policy

    @contextmanager
    def _exact_kernels(self) -> Generator[None]:
        """Use only deterministic kernels inside the block, if configured."""
        wanted = self.settings.deterministic
        filling: Any = torch.utils.deterministic
        before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
        if wanted or (wanted is None and self._device.type == "cpu"):
            torch.use_deterministic_algorithms(True)
            # Filling memory only detects reads of uninitialised memory, and costs time.
            filling.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0])
            filling.fill_uninitialized_memory = before[1]

    def _step(self, rows: list[Row], loss: LossSettings) -> Figures:
        if not rows:
            self._step_log_probs = []
            return {"step/rows": 0.0, "step/skipped": 0.0}
        try:
            figures, bad, self._step_log_probs = self._accumulate(rows, loss)
        except torch.OutOfMemoryError as error:
            self._optimizer.zero_grad()
            raise RunStopped(
                StopCause.LEARNER,
                f"{self._device} ran out of memory in a step: lower policy.token_budget, or use LoRA (policy.lora)",
            ) from error
        except BaseException:
            # A partial gradient must not reach the next step.
            self._optimizer.zero_grad()
            raise
        norm = self._optimizer.grad_norm()
        figures["step/gradient_norm"] = norm
        if bad or not np.isfinite(norm):
            self._optimizer.zero_grad()
            return figures | self._skip(
                "the loss" if bad else "the gradient", bad or self._rows_without_gradient(rows, loss)
            )
        self._skipped = 0
        figures["step/rate"] = self._optimizer.update(self._version, norm)
        self._version += 1
        return figures | {"step/skipped": 0.0}

    def _accumulate(
        self, rows: list[Row], loss: LossSettings
    ) -> tuple[Figures, list[int], list[NDArray[np.float32]]]:
        """Accumulate the gradient of all rows; return figures, the rows with a non-finite loss, and log-probabilities."""
        batches = self._batches(rows)
        total, parts, bad = 0.0, list[Figures](), list[int]()
        mine = dict[int, NDArray[np.float32]]()
        for packed, counts in share_of(batches, self._ranks.count, self._ranks.rank):
            log_probs, entropy = self._policy(packed)
            numbers: list[int] = packed.rows.tolist()
            try:
                value, figures = loss_of(log_probs, [rows[number] for number in numbers], loss, entropy)
            except LossFailure as failure:
                bad += [numbers[index] for index in failure.rows]
                # The other ranks wait for this one's part of the gradient.
                value, figures = log_probs.sum() * 0.0, {}
            # A repeated micro-batch only takes part in the collectives.
            (value if counts else value * 0.0).backward()
            if counts:
                total += value.item()
                parts.append(figures)
                mine |= _by_row(packed, log_probs.detach())
        results = self._ranks.gather((total, parts, bad, mine))
        figures = merge_figures(part for _, theirs, _, _ in results for part in theirs)
        figures |= batch_figures(rows, batches) | {"step/loss": sum(value for value, _, _, _ in results)}
        return (
            figures,
            sorted({row for _, _, theirs, _ in results for row in theirs}),
            _in_order(theirs for _, _, _, theirs in results),
        )

    def _batches(self, rows: list[Row]) -> list[Packed]:
        vocabulary = self._policy.plain.get_input_embeddings().weight.shape[0]
        for number, row in enumerate(rows):
            if not 0 <= row.ids.min() <= row.ids.max() < vocabulary:
                raise ConfigurationError(
                    f"row {number} has token {row.ids.max()}, but the model has tokens 0 to {vocabulary - 1}: "
                    "it was sampled by another model"
                )
        return micro_batches(
            rows,
            self.settings.token_budget,
            self._ranks.count,
            by_row=self._policy.by_row,
            prefer_small=self._device.type == "cpu",
        )

    def _rows_without_gradient(self, rows: list[Row], loss: LossSettings) -> list[int]:
        """Return the rows whose own gradient is not finite."""
        bad = list[int]()
        for number, row in enumerate(rows):
            failed = self._accumulate([row], loss)[1]
            if failed or not np.isfinite(self._optimizer.grad_norm()):
                bad.append(number)
            self._optimizer.zero_grad()
        return bad

    def _skip(self, what: str, bad: list[int]) -> Figures:
        """Count and log a skipped step."""
        self._skipped += 1
        _log.warning("skipped a non-finite step", what=what, rows=bad[:16], in_a_row=self._skipped)
        if self._skipped > self.optimizer_settings.max_skipped_steps:
            raise RunStopped(
                StopCause.LEARNER,
                f"{what} was not finite in {self._skipped} consecutive steps (rows {_enumerated(bad)} of the last one): "
                "check these rows, lower optimizer.learning_rate, and resume from the last checkpoint",
            )
        figures = {"step/skipped": 1.0, "step/bad_rows": float(len(bad))}
        return figures | ({"step/first_bad_row": float(bad[0])} if bad else {})

    def _log_probs(self, rows: list[Row], reference: bool) -> list[NDArray[np.float32]]:
        if not rows:
            return []
        batches = self._batches(rows)
        mine = dict[int, NDArray[np.float32]]()
        with torch.no_grad(), self._initial_or_current(reference) as policy:
            for packed, counts in share_of(batches, self._ranks.count, self._ranks.rank):
                values = policy(packed)[0]
                if counts:
                    mine |= _by_row(packed, values)
        return _in_order(self._ranks.gather(mine))

    @contextmanager
    def _initial_or_current(self, wanted: bool) -> Generator[Policy]:
        """Yield the policy, or the initial one: without its adapters, or a frozen copy."""
        if wanted and self.settings.lora:
            from peft.helpers import rescale_adapter_scale

            # Disabling them would freeze them, which sharded weights remember.
            with rescale_adapter_scale(self._policy.model, 0.0):
                yield self._policy
        elif wanted:
            if self._reference is None:
                self._reference = self._load().requires_grad_(False)
            yield self._reference
        else:
            yield self._policy

    def _export(self, folder: Path, adapters: bool, durable: bool) -> Path:
        if adapters:
            weights, write = (
                adapter_weights(self.model, self._dtype),
                partial(write_adapters, folder, self.model),
            )
        else:
            plain = self._policy.plain
            weights = merged_weights(plain, self._dtype)
            write = partial(write_model, folder, self.folder, plain, self.settings, durable)
        self._write_together(weights, write)
        return folder

    def _save(self, folder: Path, position: dict[str, object]) -> Path:
        state = BackboneState(
            version=self._version, skipped=self._skipped, randomness=randomness(), position=position
        )
        self._write_together(state_tensors(self._optimizer), partial(write_state, folder, state))
        return folder

    def _write_together(
        self, tensors: Iterator[tuple[str, Tensor]], write: Callable[[Iterator[tuple[str, Tensor]]], None]
    ) -> None:
        """Let the first process write tensors that all ranks gather together."""
        problem: CheckpointError | None = None
        if self.leads:
            try:
                write(tensors)
            except CheckpointError as error:
                problem = error
        for _ in tensors:
            # Keep gathering: the other ranks must not wait for a process that failed to write.
            pass
        if problem := self._ranks.broadcast(problem):
            raise problem

    def _restore(self, folder: Path) -> dict[str, object]:
        state: Any = None
        if self.leads:
            try:
                state = read_state(folder)
            except CheckpointError as error:
                state = error
        state = self._ranks.broadcast(state)
        if not isinstance(state, BackboneState):
            raise state
        restore_tensors(folder, self._optimizer)
        set_randomness(state.randomness)
        self._version, self._skipped = state.version, state.skipped
        return state.position


def _by_row(packed: Packed, values: Tensor) -> dict[int, NDArray[np.float32]]:
    """Return the values of the trained tokens of each row by its number."""
    lines = zip(packed.rows.tolist(), values.float().cpu().numpy(), packed.mask, strict=True)
    return {number: line[mask] for number, line, mask in lines}


def _in_order(parts: Iterable[dict[int, NDArray[np.float32]]]) -> list[NDArray[np.float32]]:
    """Return the values of all ranks in the order of the rows."""
    by_row = {number: values for part in parts for number, values in part.items()}
    return [by_row[number] for number in sorted(by_row)]


def _enumerated(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "") if numbers else "unknown"
