# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are partially typed.
"""Attention along a tree, registered as an attention implementation of transformers."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentflow.errors import ConfigurationError
from agentflow.learner.compute._tree import QueryBlock, TreeMask

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
        # FlexAttention has no kernel of 64 bits.
        flex = query.device.type == "cuda" and query.dtype != torch.float64
        attention = "flex" if flex else "blocks"
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

    return flex_attention_forward(module, query, key, value, tree.flex_mask, scaling=scale)[0]


def by_blocks(query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float) -> Tensor:
    """Compute the attention of each block of queries over the keys they see. All tensors are (1, heads, tokens, size)."""
    out: Tensor = _ByBlocks.apply(query, key, value, tree, scale)
    return out


class _ByBlocks(torch.autograd.Function):
    """Keeps the scores of one block in memory at a time, and recomputes them in the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TreeMask, scale: float) -> Tensor:  # noqa: ANN401
        """Compute attention."""
        out = query.new_empty((*query.shape[:3], value.shape[3]))
        keys, values = key[0], value[0]
        queries, outs = _grouped(query, keys), _grouped(out, keys)
        for block in tree.blocks:
            weights = _weights(_chosen(queries, block), keys[:, block.keys], block, scale)
            _put(outs, block, weights @ _exact(values[:, block.keys]))
        ctx.save_for_backward(query, key, value, out)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradient of a softmax between two products."""
        grad = grad_outputs[0]
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        query, key, value, out = saved
        tree: TreeMask = ctx.tree
        keys, values = key[0], value[0]
        queries, outs, grads = (_grouped(one, keys) for one in (query, out, grad))
        query_grad, key_grad, value_grad = torch.empty_like(query), _zeros(keys), _zeros(values)
        query_grads = _grouped(query_grad, keys)
        for block in tree.blocks:
            asked, seen, given = _chosen(queries, block), keys[:, block.keys], _chosen(grads, block)
            weights = _weights(asked, seen, block, ctx.scale)
            _add(value_grad, block, weights.mT @ given)
            inner = (given * _chosen(outs, block)).sum(-1, keepdim=True)
            scores = (given @ _exact(values[:, block.keys]).mT).sub_(inner).mul_(weights).mul_(ctx.scale)
            _put(query_grads, block, scores @ _exact(seen))
            _add(key_grad, block, scores.mT @ asked)
        return query_grad, key_grad[None].to(key.dtype), value_grad[None].to(value.dtype), None, None


def _weights(queries: Tensor, keys: Tensor, block: QueryBlock, scale: float) -> Tensor:
    """Return the attention weights, (key heads, queries, keys)."""
    scores = (queries * scale) @ _exact(keys).mT
    # Each key head serves several consecutive query heads.
    apart = scores.unflatten(1, (-1, block.end - block.begin))
    apart[..., block.open :].masked_fill_(block.hidden, -torch.inf)
    return torch.softmax(scores, -1)


def _exact(tensor: Tensor) -> Tensor:
    """Return the tensor in at least 32 bits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _zeros(like: Tensor) -> Tensor:
    """Return an accumulator in at least 32 bits."""
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))


def _grouped(tensor: Tensor, keys: Tensor) -> Tensor:
    """View a tensor as (key heads, query heads per key head, tokens, size)."""
    return tensor[0].unflatten(0, (len(keys), -1))


def _chosen(tensor: Tensor, block: QueryBlock) -> Tensor:
    """Return the part of a block's queries, flattened for one product per key head."""
    return _exact(tensor[:, :, block.begin : block.end].flatten(1, 2))


def _put(tensor: Tensor, block: QueryBlock, part: Tensor) -> None:
    """Write the part of a block's queries."""
    tensor[:, :, block.begin : block.end] = part.unflatten(1, (tensor.shape[1], -1))


def _add(tensor: Tensor, block: QueryBlock, part: Tensor) -> None:
    """Add to the part of a block's keys."""
    if isinstance(block.keys, slice):
        tensor[:, block.keys] += part
    else:
        tensor.index_add_(1, block.keys, part)
