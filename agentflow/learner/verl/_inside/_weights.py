# pyright: basic, reportMissingImports=false
"""Export of the weights from verl: a folder of safetensors."""

import shutil
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from agentflow.learner.verl._inside._losses import VerlObject


@CheckpointEngineRegistry.register("agentflow")
class FolderWeights(CheckpointEngine):
    """Writes the weights it is asked to send; there is no receiver in verl."""

    def __init__(self, bucket_size: int, is_master: bool = False, folder: str = "", model: str = "") -> None:
        self.is_master = is_master
        self.folder = Path(folder)
        self.model = Path(model)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Write the weights; every process takes part in gathering each tensor."""
        tensors = dict[str, torch.Tensor]()
        for name, tensor in weights:
            if self.is_master:
                tensors[name] = tensor.detach().cpu().contiguous().clone()
        if self.is_master:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            for path in self.model.iterdir():
                if (
                    path.is_file()
                    and path.suffix in {".json", ".txt", ".jinja", ".model"}
                    and "index" not in path.name
                ):
                    shutil.copy(path, self.folder)
            save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[Any]:
        raise NotImplementedError
        yield

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, *_given: VerlObject) -> tuple[dict[str, Any], dict[str, Any]]:
        raise NotImplementedError

    def init_process_group(self, **_given: VerlObject) -> None: ...

    def finalize(self) -> None: ...
