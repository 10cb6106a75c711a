"""One rank of a training over several processes: `python -m … MODEL FOLDER`."""

# pyright: reportUnknownVariableType=false
# safetensors is typed in part.

import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from agentflow.learner._checkpoints import CheckpointError
from agentflow.learner.local import LocalBackbone
from tests.agentflow.learner.local._steps import LOSS, backbone_of, some_rows


def lead(backbone: LocalBackbone, folder: Path) -> None:
    """Say what is done."""
    rows = some_rows()
    backbone.step(rows, LOSS)
    backbone.save(folder / "first", {})
    # One row: there is nothing in it for the other rank.
    backbone.step(rows[:1], LOSS)
    nothing = replace(rows[20], advantages=np.full_like(rows[20].advantages, np.nan))
    figures = backbone.step([*rows[:20], nothing, *rows[21:]], LOSS)
    assert (figures["step/skipped"], figures["step/first_bad_row"]) == (1, 20), figures
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        backbone.save(folder / "checkpoint", {})
    except CheckpointError as error:
        assert "File too large" in str(error)
    else:
        raise AssertionError("the disk was full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    backbone.save(folder / "checkpoint", {"step": 2})
    backbone.step(rows, LOSS)
    backbone.load(folder / "checkpoint")
    figures = backbone.step(rows, LOSS)
    assert figures["step/batches"] >= 2
    log_probs = backbone.log_probs(rows), backbone.log_probs(rows, reference=True)
    save_file(
        {f"{kind}-{number}": one for kind, found in enumerate(log_probs) for number, one in enumerate(found)},
        folder / "log_probs",
    )
    (folder / "loss").write_text(repr(figures["step/loss"]))
    backbone.export(folder / "model")
    backbone.close()


def main(model: Path, folder: Path) -> None:
    """Lead or follow."""
    backbone = backbone_of(model)
    if backbone.leads:
        lead(backbone, folder)
    else:
        backbone.follow()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
