# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch and safetensors are partially typed)
"""Loading of published weights inside vLLM's worker, and the proof that each tensor arrived. It imports nothing of ours.

A tensor that the engine did not take is found whatever its size of change: plain parameters are compared with the file, bit by
bit. A CPU keeps only packed copies of linear layers; these are read back by one-hot inputs, at columns that changed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

COLUMNS = 8
"""Number of columns of a packed tensor that are read back."""
SHOWN = 8
"""Maximum number of names in a report."""


class WeightLoader:
    """Extension of vLLM's worker. Its attributes must not exist there."""

    def agentflow_load(self, folder: str, before: str = "") -> dict[str, Any]:
        """Load the weights of a folder in place, and compare what the engine has with the files.

        :param before: folder of the weights that the engine had, if it still exists.
        :return: `dtype`; `tensors`, the number sent; `verified`, of those compared; `stale`, names of those that differ.
        """
        worker: Any = self
        self.agentflow_reload(folder)
        model: Any = worker.get_model()
        layers: list[Any] = list(model.modules())
        for module in layers:
            # A head that is tied to the embeddings is in no file, so its packed copy was not made again.
            if _is_packed(module) and module.weight.numel():
                _pack(module)
        with ExitStack() as stack:
            sent = _open_files(Path(folder), stack)
            old = _open_files(Path(before), stack) if before else {}
            report = _compare(model, sent, old)
        return {"dtype": str(worker.model_config.dtype).removeprefix("torch."), **report}

    def agentflow_reload(self, folder: str) -> None:
        """Let vLLM load the weights of a folder."""
        worker: Any = self
        worker.reload_weights(weights_path=folder)


class _Target(NamedTuple):
    """Target of a tensor of a file in the engine."""

    module: Any
    parameter: str
    begin: int
    """First row, in a parameter that joins several tensors."""


def _compare(model: Any, sent: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    modules: dict[str, Any] = dict(model.named_modules())
    stale, verified = list[str](), 0
    with torch.no_grad():
        for name, file in sent.items():
            target = _target_of(name, model, modules)
            if target is None:
                continue
            tensor: Tensor = file.get_tensor(name)
            same = _is_loaded(target, tensor, old[name].get_tensor(name) if name in old else None)
            verified += same is not None
            if same is False:
                stale.append(name)
        for name, module in modules.items():
            # A packed copy beside a plain parameter: that of a tied head.
            if (
                _is_packed(module)
                and module.weight.numel()
                and _is_packed_stale(module, 0, module.weight, None)
            ):
                stale.append(f"{name}.weight")
    return {
        "tensors": len(sent),
        "verified": verified,
        "stale": stale[:SHOWN],
        "missing": sorted(old.keys() - sent.keys())[:SHOWN],
    }


def _target_of(name: str, model: Any, modules: Mapping[str, Any]) -> _Target | None:  # noqa: ANN401
    """Return the target of a tensor; `None` if it is unknown, as that of experts in one parameter."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is not None and hasattr(mapper, "orig_to_new_stacked"):
        # It also maps parts to the parameter that joins them, but does not say where they are in it.
        name = dataclasses.replace(mapper, orig_to_new_stacked={}).map_name(name) or name
    owner, _, parameter = name.rpartition(".")
    if owner in modules:
        return _Target(modules[owner], parameter, 0) if hasattr(modules[owner], parameter) else None
    outer, _, part = owner.rpartition(".")
    for joined, parts in (getattr(model, "packed_modules_mapping", None) or {}).items():
        module = modules.get(f"{outer}.{joined}")
        sizes = getattr(module, "output_partition_sizes", ())
        if part in parts and len(sizes) == len(parts) and hasattr(module, parameter):
            return _Target(module, parameter, sum(sizes[: parts.index(part)]))
    return None


def _is_loaded(target: _Target, tensor: Tensor, old: Tensor | None) -> bool | None:
    """Return whether the engine has a tensor; `None` if that can't be told, as for a part of it on this rank."""
    parameter: Tensor = getattr(target.module, target.parameter)
    if not parameter.numel() and target.parameter == "weight" and _is_packed(target.module):
        return not _is_packed_stale(target.module, target.begin, tensor, old)
    if parameter.ndim != tensor.ndim:
        return None
    rows = parameter[target.begin : target.begin + len(tensor)] if tensor.ndim else parameter
    if rows.shape != tensor.shape or not rows.is_floating_point():
        return None
    # As bits: NaN is equal to itself.
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    return torch.equal(rows.view(kind), tensor.to(rows.device, rows.dtype).contiguous().view(kind))


def _is_packed(module: Any) -> bool:  # noqa: ANN401
    return hasattr(module, "cpu_linear") and hasattr(module, "weight")


def _pack(module: nn.Module) -> None:
    """Pack the weight of a layer again, and keep the weight."""
    from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
        dispatch_cpu_unquantized_gemm,
    )

    dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _is_packed_stale(module: Any, begin: int, tensor: Tensor, old: Tensor | None) -> bool:  # noqa: ANN401
    """Return whether a packed copy differs from a tensor, (outputs, inputs), in some columns."""
    columns = _columns(tensor, old)
    dtype = module.params_dtype if hasattr(module, "params_dtype") else tensor.dtype
    inputs = torch.zeros(len(columns), tensor.shape[1], dtype=dtype)
    inputs[torch.arange(len(columns)), columns] = 1
    outputs: Tensor = module.cpu_linear(inputs, module.weight, None)[:, begin : begin + len(tensor)]
    return not torch.equal(outputs, tensor[:, columns].T.to(dtype))


def _columns(tensor: Tensor, old: Tensor | None) -> Tensor:
    """Return the columns that changed most, or some over the whole width."""
    if old is not None and old.shape == tensor.shape:
        changed = (tensor != old).sum(0)
        if changed.any():
            return changed.topk(min(COLUMNS, len(changed))).indices
    return torch.linspace(0, tensor.shape[1] - 1, min(COLUMNS, tensor.shape[1])).long()


def _open_files(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Open the files of a folder; return that of each tensor. An absent folder has none."""
    return {name: file for file in _files(folder, stack) for name in file.keys()}  # noqa: SIM118 - not a mapping


def _files(folder: Path, stack: ExitStack) -> Iterator[Any]:
    for path in sorted(folder.glob("*.safetensors")):
        yield stack.enter_context(safe_open(path, framework="pt"))
