"""One of two processes, each with every second row: `python -m tests.agentflow.learner.losses._rank RANK FOLDER`."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from agentflow.learner.losses import rows_of
from tests.agentflow.learner.losses._cases import SETTINGS, episodes, loss_and_gradient, with_policies


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    sums: dict[str, np.ndarray] = {}
    for name, settings in SETTINGS.items():
        rows = with_policies(rows_of(episodes(11), settings), proximal="decoupled" in name)
        for dtype in (torch.float32, torch.float64):
            loss, gradient = loss_and_gradient(rows[rank::2], settings, dtype)
            total = torch.tensor([loss, *gradient.flatten()], dtype=torch.float64)
            # What travels between machines is in the precision of the gradients.
            share = total.to(dtype)
            distributed.all_reduce(share)
            sums[f"{name} {dtype}"] = share.double().numpy()
    distributed.destroy_process_group()
    if rank == 0:
        np.savez(folder / "gradients.npz", allow_pickle=False, **sums)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
