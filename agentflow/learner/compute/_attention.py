# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are partially typed.
"""Attention along a tree, registered as an attention implementation of transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentflow.errors import ConfigurationError

NAME = "agentflow_tree"
"""Name of the implementation in transformers."""

Attention = Literal["auto", "blocks", "dense", "flex"]
"""Attention kernel: blocks of queries with the keys they see, torch's own with a dense mask, or FlexAttention; `auto`: the
fastest of these on the device."""

QUERIES = 128
"""Maximum number of queries in a block of a chain."""
KEY_COST = 16
"""Cost of fetching a key, in scores of a query and a key."""
BLOCK_COST = 2048
"""Cost of a block, likewise."""


class QueryBlock(NamedTuple):
    """Neighbouring queries, and every key that any of them sees."""

    begin: int
    """First query."""
    end: int
    """Index after the last query."""
    keys: Tensor | slice
    """Ancestors of the first query, in order, and the queries themselves."""
    open: int
    """Number of leading keys that every query sees."""
    hidden: Tensor
    """(queries, remaining keys) True where a key is hidden from a query."""


@dataclass(eq=False)
class TreeMask:
    """Visibility of tokens: `j` sees `i` if and only if `i <= j < ends[i]`, and `i` is in its window."""

    ends: NDArray[np.int64]
    """Index after the subtree of each token."""
    depths: NDArray[np.int64]
    """Depth of each token."""
    device: torch.device
    """Device of the model."""
    seen: list[int] = field(default_factory=list[int])
    """Layers whose attention followed the tree, once per forward."""
    window: int | None = None
    """Number of tokens that a token sees, the last of which is itself; `None`: its whole path."""
    _windows: dict[int, "TreeMask"] = field(default_factory=dict[int, "TreeMask"])

    def within(self, window: int | None) -> "TreeMask":
        """Return the visibility in layers with a sliding window."""
        if window is None or window > self.depths.max():
            return self
        if window not in self._windows:
            # FSDP walks through the arguments of layers: no circle.
            self._windows[window] = replace(self, window=window, _windows={})
        return self._windows[window]

    @cached_property
    def blocks(self) -> Sequence[QueryBlock]:
        """All queries, in blocks that minimise hidden scores and repeated fetches."""
        return [self._block(begin, end) for begin, end in _cut(self.ends, self.depths)]

    @cached_property
    def visible(self) -> Tensor:
        """(tokens, tokens) Dense visibility mask."""
        indices = torch.arange(len(self.ends), device=self.device)
        return self._sees(indices[:, None], indices)

    @cached_property
    def flex_mask(self) -> Any:  # noqa: ANN401 - FlexAttention's
        """Blocks of queries and keys that FlexAttention computes."""
        from torch.nn.attention.flex_attention import create_block_mask

        size, sees = len(self.ends), self._sees

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sees(query, key)

        # Compiled, so that the mask of all pairs is never in memory.
        compiled = self.device.type == "cuda"
        return create_block_mask(visible, None, None, size, size, device=str(self.device), _compile=compiled)

    @cached_property
    def _sees(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return whether a query sees a key, by their indices."""
        ends, depths = (torch.from_numpy(array).to(self.device) for array in (self.ends, self.depths))
        window = self.window
        if window is None:
            return lambda query, key: (key <= query) & (query < ends[key])
        return lambda query, key: (
            (key <= query) & (query < ends[key]) & (depths[query] - depths[key] < window)
        )

    def _block(self, begin: int, end: int) -> QueryBlock:
        """Return the block of these queries."""
        before = np.flatnonzero(self.ends[:begin] > begin)
        opened = int((self.ends[before] >= end).sum())
        if self.window is not None:
            before, opened = before[self.depths[begin:end].min() - self.depths[before] < self.window], 0
        keys = np.concatenate((before, np.arange(begin, end)))
        queries, others = np.arange(begin, end)[:, None], keys[opened:]
        unseen = (others > queries) | (queries >= self.ends[others])
        if self.window is not None:
            unseen |= self.depths[queries] - self.depths[others] >= self.window
        hidden = torch.from_numpy(unseen).to(self.device)
        # Neighbours need no fetching.
        if len(keys) == end - keys[0]:
            return QueryBlock(begin, end, slice(int(keys[0]), end), opened, hidden)
        return QueryBlock(begin, end, torch.from_numpy(keys).to(self.device), opened, hidden)


def _cut(ends: NDArray[np.int64], depths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the bounds of blocks: branches are joined while that costs less than another block."""
    size = len(ends)
    # True where the parent of a token is the token before it.
    continues = np.concatenate(([False], ends[:-1] > np.arange(1, size)))
    starts = [*np.flatnonzero(~continues | (np.arange(size) % QUERIES == 0)).tolist(), size]
    bounds: list[tuple[int, int]] = []
    begin, above = 0, 0
    for start, stop in pairwise(starts):
        if start == begin:
            continue
        depth = int(depths[start])
        have, more = start - begin, stop - start
        apart = more * (depth + more) + KEY_COST * (depth + more) + BLOCK_COST
        if more * (above + 2 * have + more) > apart:
            bounds.append((begin, start))
            begin, above = start, depth
    bounds.append((begin, size))
    return bounds


def attend(
    module: Any,  # noqa: ANN401 - an attention layer of transformers
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeMask | None = None,
    attention: Attention = "auto",
    **others: Any,  # noqa: ANN401 - differs by layer
) -> tuple[Tensor, None]:
    """Compute the attention of a layer: along the tree if there is one, otherwise over rows as transformers does.

    :raises ConfigurationError: if the layer needs more than windows, soft-capped scores and sinks.
    """
    softcap, sinks, scaling = others.get("softcap"), others.get("s_aux"), others.get("scaling")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if tree is None:
        if softcap is None and sinks is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        if attention_mask is None:
            pairs = (query.shape[2], key.shape[2])
            attention_mask = torch.ones(pairs, dtype=torch.bool, device=query.device).tril(
                pairs[1] - pairs[0]
            )
        out = dense(query, key, value, attention_mask, scale, softcap, sinks)
        return out.transpose(1, 2).contiguous(), None
    if others.get("position_bias") is not None:
        raise ConfigurationError(f"{type(module).__name__} has a position bias")
    if others.get("dropout"):
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
    keys, values = (_exact(tensor.repeat_interleave(groups, 1)) for tensor in (key, value))
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
        queries, outs, grads = (_grouped(tensor, keys) for tensor in (query, out, grad))
        query_grad, key_grad, value_grad = torch.empty_like(query), _zeros(keys), _zeros(values)
        sink_grad = None if sinks is None else _zeros(sinks)
        query_grads = _grouped(query_grad, keys)
        for block in tree.blocks:
            block_queries, block_keys, block_grads = (
                _chosen(queries, block),
                keys[:, block.keys],
                _chosen(grads, block),
            )
            weights, slope = _weights(block_queries, block_keys, block, ctx.scale, ctx.softcap, sinks)
            _add(value_grad, block, weights.mT @ block_grads)
            inner = (block_grads * _chosen(outs, block)).sum(-1, keepdim=True)
            scores = (
                (block_grads @ _exact(values[:, block.keys]).mT).sub_(inner).mul_(weights).mul_(ctx.scale)
            )
            if slope is not None:
                scores.mul_(slope)
            if sink_grad is not None:
                sunk = inner * (1 - weights.sum(-1, keepdim=True))
                sink_grad -= sunk.unflatten(1, (-1, block.end - block.begin)).sum((2, 3)).flatten()
            _put(query_grads, block, scores @ _exact(block_keys))
            _add(key_grad, block, scores.mT @ block_queries)
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
