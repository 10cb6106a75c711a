"""Attention along a tree, behind one interface, as transformers' models call it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# transformers is typed in part.
from typing import Any, Literal, cast

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentflow.errors import ConfigurationError
from agentflow.learner.compute._blocks import by_blocks
from agentflow.learner.compute._tree import Tree

__all__ = ["NAME", "Attention"]

NAME = "agentflow_tree"
"""Under this name transformers knows it."""

Attention = Literal["auto", "blocks", "dense", "flex"]
"""How attention is computed along a tree: by blocks of queries with the keys that they see, by torch's own with a plain
mask, by FlexAttention; or the quickest of these on the device."""

REFUSED = {
    "sliding_window": "a sliding window",
    "s_aux": "attention sinks",
    "softcap": "capped scores",
    "position_bias": "a bias of positions",
}
"""What some layers do that isn't plain attention."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Tree | None = None,
    attention: Attention = "auto",
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,  # noqa: ANN401 - what a layer passes is its own affair
) -> tuple[Tensor, None]:
    """Attention of a layer: along the tree if there is one, else transformers' own over rows.

    :raises ConfigurationError: the layer does more than plain attention.
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
            f"{type(module).__name__} drops scores at random, which no two layouts do alike: set attention_dropout to 0"
        )
    tree.seen.append(cast("int", module.layer_idx))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if attention == "auto":
        attention = "flex" if query.device.type == "cuda" else "blocks"
    if attention == "flex":
        from agentflow.learner.compute._flex import flex

        return flex(module, query, key, value, tree, scale), None
    compute = by_blocks if attention == "blocks" else dense
    return compute(query, key, value, tree, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
# Rows are masked as torch's own attention is.
AttentionMaskInterface.register(NAME, sdpa_mask)


def dense(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float) -> Tensor:
    """Attention with a plain mask: what the others are held against."""
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=tree.visible, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
