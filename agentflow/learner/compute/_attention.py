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
    """Compute the attention of a layer: along the tree if there is one, otherwise over rows as transformers does.

    :raises ConfigurationError: if the layer needs more than windows, soft-capped scores and sinks.
    """
    softcap, sinks = others.get("softcap"), others.get("s_aux")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if tree is None:
        if softcap is None and sinks is None:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
            )
        if attention_mask is None:
            pairs = (query.shape[2], key.shape[2])
            attention_mask = torch.ones(pairs, dtype=torch.bool, device=query.device).tril(
                pairs[1] - pairs[0]
            )
        out = dense(query, key, value, attention_mask, scale, softcap, sinks)
        return out.transpose(1, 2).contiguous(), None
    if others.get("position_bias") is not None:
        raise ConfigurationError(f"{type(module).__name__} has a position bias")
    if dropout:
        raise ConfigurationError(
            f"{type(module).__name__} has attention dropout, which differs between layouts: set attention_dropout to 0"
        )
    tree.seen.append(int(module.layer_idx))
    tree = tree.within(others.get("sliding_window"))
    if attention == "auto":
        # FlexAttention has no kernel of 64 bits, and sums up sinks in the precision of the values.
        flex = query.device.type == "cuda" and query.dtype != torch.float64 and sinks is None
        attention = "flex" if flex else "blocks"
    if attention == "flex":
        return _flex(module, query, key, value, tree, scale, softcap, sinks), None
    if attention == "dense":
        out = dense(query, key, value, tree.visible, scale, softcap, sinks)
    else:
        out = by_blocks(query, key, value, tree, scale, softcap, sinks)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
# Rows use the mask of torch's own attention.
AttentionMaskInterface.register(NAME, sdpa_mask)


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute attention with a dense mask; the reference for the other kernels."""
    if softcap is None and sinks is None:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    groups = query.shape[1] // key.shape[1]
    keys, values = (_exact(one.repeat_interleave(groups, 1)) for one in (key, value))
    scores = (_exact(query) * scale) @ keys.mT
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible, -torch.inf)
    sunk = None if sinks is None else _exact(sinks)[:, None, None].expand(*scores.shape[:-1], 1)
    return (_softmax(scores, sunk) @ values).to(value.dtype)


def _flex(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: TreeMask,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute attention with FlexAttention, (1, tokens, heads, size)."""
    from transformers.integrations.flex_attention import flex_attention_forward

    return flex_attention_forward(
        module, query, key, value, tree.flex_mask, scaling=scale, softcap=softcap, s_aux=sinks
    )[0]


def by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: TreeMask,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute the attention of each block of queries over the keys they see. All tensors are (1, heads, tokens, size)."""
    out: Tensor = _ByBlocks.apply(query, key, value, sinks, tree, scale, softcap)
    return out


class _ByBlocks(torch.autograd.Function):
    """Keeps the scores of one block in memory at a time, and recomputes them in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        tree: TreeMask,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Compute attention."""
        out = query.new_empty((*query.shape[:3], value.shape[3]))
        keys, values = key[0], value[0]
        queries, outs = _grouped(query, keys), _grouped(out, keys)
        for block in tree.blocks:
            weights, _ = _weights(_chosen(queries, block), keys[:, block.keys], block, scale, softcap, sinks)
            _put(outs, block, weights @ _exact(values[:, block.keys]))
        ctx.save_for_backward(query, key, value, out, *([] if sinks is None else [sinks]))
        ctx.tree, ctx.scale, ctx.softcap = tree, scale, softcap
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradient of a softmax between two products."""
        grad = grad_outputs[0]
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        query, key, value, out, *others = saved
        sinks = others[0] if others else None
        tree: TreeMask = ctx.tree
        keys, values = key[0], value[0]
        queries, outs, grads = (_grouped(one, keys) for one in (query, out, grad))
        query_grad, key_grad, value_grad = torch.empty_like(query), _zeros(keys), _zeros(values)
        sink_grad = None if sinks is None else _zeros(sinks)
        query_grads = _grouped(query_grad, keys)
        for block in tree.blocks:
            asked, seen, given = _chosen(queries, block), keys[:, block.keys], _chosen(grads, block)
            weights, slope = _weights(asked, seen, block, ctx.scale, ctx.softcap, sinks)
            _add(value_grad, block, weights.mT @ given)
            inner = (given * _chosen(outs, block)).sum(-1, keepdim=True)
            scores = (given @ _exact(values[:, block.keys]).mT).sub_(inner).mul_(weights).mul_(ctx.scale)
            if slope is not None:
                scores.mul_(slope)
            if sink_grad is not None:
                sunk = inner * (1 - weights.sum(-1, keepdim=True))
                sink_grad -= sunk.unflatten(1, (-1, block.end - block.begin)).sum((2, 3)).flatten()
            _put(query_grads, block, scores @ _exact(seen))
            _add(key_grad, block, scores.mT @ asked)
        return (
            query_grad,
            key_grad[None].to(key.dtype),
            value_grad[None].to(value.dtype),
            None if sinks is None or sink_grad is None else sink_grad.to(sinks.dtype),
            None,
            None,
            None,
        )


def _weights(
    queries: Tensor,
    keys: Tensor,
    block: QueryBlock,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention weights, (key heads, queries, keys), and the slope of the soft cap."""
    scores, slope = (queries * scale) @ _exact(keys).mT, None
    if softcap is not None:
        bent = torch.tanh(scores / softcap)
        scores, slope = bent * softcap, 1 - bent.square()
    # Each key head serves several consecutive query heads.
    apart = scores.unflatten(1, (-1, block.end - block.begin))
    apart[..., block.open :].masked_fill_(block.hidden, -torch.inf)
    sunk: Tensor | None = None
    if sinks is not None:
        queries_each = block.end - block.begin
        sunk = _exact(sinks).reshape(len(keys), -1).repeat_interleave(queries_each, 1)[..., None]
    return _softmax(scores, sunk), slope


def _softmax(scores: Tensor, sunk: Tensor | None) -> Tensor:
    """Return the softmax, less what goes to the sinks: scores of a key without a value."""
    if sunk is None:
        return torch.softmax(scores, -1)
    return torch.softmax(torch.cat((scores, sunk), -1), -1)[..., :-1]


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
