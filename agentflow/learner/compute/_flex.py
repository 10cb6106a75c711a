"""FlexAttention along a tree: for GPUs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# FlexAttention is typed in part.
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers.integrations.flex_attention import flex_attention_forward

from agentflow.learner.compute._tree import Tree

__all__ = ["block_mask", "flex"]


def flex(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float) -> Tensor:
    """Attention as transformers computes it with FlexAttention, (1, tokens, heads, size)."""
    mask = tree.remember("flex", block_mask)
    return flex_attention_forward(module, query, key, value, mask, scaling=scale)[0]


def block_mask(tree: Tree) -> BlockMask:
    """Which blocks of queries and keys are computed."""
    ends = torch.from_numpy(tree.ends).to(tree.device)
    size = len(tree.ends)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    # Compiled, so that the mask of all pairs never stands in memory.
    compiled = tree.device.type == "cuda"
    return create_block_mask(sees, None, None, size, size, device=str(tree.device), _compile=compiled)
