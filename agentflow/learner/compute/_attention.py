"""Attention along a tree, registered as an attention implementation of transformers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are partially typed.
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentflow.errors import ConfigurationError
from agentflow.learner.compute._blocks import by_blocks
from agentflow.learner.compute._tree import TreeMask

NAME = "agentflow_tree"
"""Name of the implementation in transformers."""

Attention = Literal["auto", "blocks", "dense", "flex"]
"""Attention kernel: blocks of queries with the keys they see, torch's own with a dense mask, or FlexAttention; `auto`: the
fastest of these on the device."""

REFUSED = {
    "sliding_window": "a sliding window",
    "s_aux": "attention sinks",
    "softcap": "soft-capped scores",
    "position_bias": "a position bias",
}
"""Arguments of layers whose attention is not plain."""


def attend(
    module: Any,  # noqa: ANN401 - an attention layer of transformers
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeMask | None = None,
    attention: Attention = "auto",
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,  # noqa: ANN401 - differs by layer
) -> tuple[Tensor, None]:
    """Compute the attention of a layer: along the tree if there is one, otherwise transformers' own over rows.

    :raises ConfigurationError: if the layer needs more than plain attention.
    """
    if tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise ConfigurationError(f"{type(module).__name__} has {what}: train this model row by row")
    if dropout:
        raise ConfigurationError(
            f"{type(module).__name__} has attention dropout, which differs between layouts: set attention_dropout to 0"
        )
    tree.seen.append(int(module.layer_idx))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if attention == "auto":
        attention = "flex" if query.device.type == "cuda" else "blocks"
    if attention == "flex":
        return _flex(module, query, key, value, tree, scale), None
    compute = by_blocks if attention == "blocks" else dense
    return compute(query, key, value, tree, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
# Rows use the mask of torch's own attention.
AttentionMaskInterface.register(NAME, sdpa_mask)


def dense(query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float) -> Tensor:
    """Compute attention with a dense mask; the reference for the other kernels."""
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=tree.visible, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def _flex(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float
) -> Tensor:
    """Compute attention with FlexAttention, (1, tokens, heads, size)."""
    from transformers.integrations.flex_attention import flex_attention_forward

    mask = tree.remember("flex", block_mask)
    return flex_attention_forward(module, query, key, value, mask, scaling=scale)[0]


def block_mask(tree: TreeMask) -> Any:  # noqa: ANN401 - FlexAttention's
    """Return the blocks of queries and keys to compute."""
    from torch.nn.attention.flex_attention import create_block_mask

    ends = torch.from_numpy(tree.ends).to(tree.device)
    size = len(tree.ends)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    # Compiled, so that the mask of all pairs is never in memory.
    compiled = tree.device.type == "cuda"
    return create_block_mask(sees, None, None, size, size, device=str(tree.device), _compile=compiled)
