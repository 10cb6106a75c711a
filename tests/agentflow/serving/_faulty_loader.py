# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (safetensors is partially typed, and the base class lies beside vLLM's process only)
"""Extension of vLLM's worker that leaves tensors stale on demand. It runs inside vLLM's process."""

from pathlib import Path
from typing import Any

from _weight_loader import WeightLoader  # pyright: ignore[reportMissingImports] - beside vLLM's process only
from safetensors.torch import load_file


class FaultyLoader(WeightLoader):  # pyright: ignore[reportUntypedBaseClass]
    """Loads weights, but for those that the folder names in a file."""

    def agentflow_reload(self, folder: str) -> None:
        """Load the weights of a folder, but for tensors whose names contain the text of a file in it."""
        worker: Any = self
        left_out = Path(folder, "stale.txt")
        if not left_out.exists():
            worker.reload_weights(weights_path=folder)
            return
        part = left_out.read_text()
        tensors = load_file(Path(folder, "model.safetensors"))
        worker.reload_weights(
            weights_iterator=iter([(name, one) for name, one in tensors.items() if part not in name])
        )
