"""Steps on rows from disk, also in a separate process that resumes: `python -m … MODEL FOLDER`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part.

import hashlib
import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import torch

from agentflow.learner.local import LocalBackbone
from tests.agentflow.learner.local._steps import LOSS, backbone_of, weights_of


def step(backbone: LocalBackbone, folder: Path, number: int) -> dict[str, float]:
    """One step on the rows that are stored for it."""
    return backbone.step(pickle.loads((folder / f"rows-{number}").read_bytes()), LOSS)


def state(backbone: LocalBackbone) -> dict[str, Any]:
    """Its weights to the bit, and what is drawn next."""
    weights = b"".join(weight.numpy().tobytes() for weight in weights_of(backbone).values())
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "drawn": [torch.rand(4).tolist(), random.random()],
    }


def main(model: Path, folder: Path) -> None:
    """Resume at the fourth step and report the result."""
    backbone = backbone_of(model)
    position = backbone.load(folder / "checkpoint")
    figures = [step(backbone, folder, number) for number in (3, 4)]
    (folder / "resumed").write_text(json.dumps([position, figures, state(backbone)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
