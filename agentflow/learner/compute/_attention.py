# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are partially typed.
"""Attention along a tree, registered as an attention implementation of transformers, and log-probabilities of rows.

The trained tokens of rows are scored packed as trees, or row by row.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentflow.errors import ConfigurationError
from agentflow.learner.packing import Packed, Row, pack

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


LOGITS = 2**24
"""Maximum number of logits in memory at once: 64 MB."""


def log_probs(model: nn.Module, packed: Packed, *, attention: Attention = "auto") -> Tensor:
    """Return the log-probability of each trained token, (rows, longest); line `k` is that of row `packed.rows[k]`.

    The model must have been given to `prepare`. Each token is computed once. See docs/packing.md.
    """
    return scores(model, packed, attention=attention)[0]


def log_probs_by_row(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """Return the same as `log_probs` from a padded batch without prefix sharing: its reference. See docs/packing.md."""
    return scores_by_row(model, rows)[0]


def scores(model: nn.Module, packed: Packed, *, attention: Attention = "auto") -> tuple[Tensor, Tensor]:
    """Return the log-probability of each trained token, and the entropy of the distribution it was sampled from.

    Both are (rows, longest), left-aligned, in at least 32 bits, and 0 after the end of a row. See docs/packing.md.

    :raises ConfigurationError: if a layer of the model did not follow the tree.
    """
    plain = plain_model(model)
    device = _device(plain)
    if packed.by_row:
        ids, index = packed.paths()
        # Padding is on the right, where no token of the row sees it: no mask is needed.
        outputs = decoder_of(plain)(input_ids=_tensor(ids, device), use_cache=False)
        positions = index[packed.predicting]
    else:
        tree = TreeMask(packed.ends, packed.positions, device)
        outputs = decoder_of(plain)(
            input_ids=_tensor(packed.ids, device)[None],
            position_ids=_tensor(packed.positions, device)[None],
            # A prepared mask, so that transformers builds none. Visibility is the tree's.
            attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device),
            tree=tree,
            attention=attention,
            use_cache=False,
        )
        _all_followed(plain, tree)
        positions = packed.predicting
    values = _label_scores(
        plain,
        outputs,
        positions=_tensor(positions, device),
        temperatures=packed.temperatures,
        lines=packed.lines,
        labels=_tensor(packed.labels, device),
    )
    return _spread(*values, _tensor(packed.gather, device), _tensor(packed.mask, device))


def scores_by_row(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return the same as `scores` from a padded batch, in the order of the rows. See docs/packing.md."""
    [packed] = pack(rows, by_row=True)
    log_prob, entropy = scores(model, packed)
    back = _tensor(np.argsort(packed.rows), log_prob.device)
    return log_prob[back], entropy[back]


def plain_model(model: Any) -> Any:  # noqa: ANN401 - transformers' models have no complete common type
    """Return the causal model itself, without the wrapper of adapters: they are in its layers."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise ConfigurationError("adapters that learn a prompt are outside the layers: use LoRA")
    return model.get_base_model()


def decoder_of(plain: Any) -> Any:  # noqa: ANN401
    """Return everything of a causal model but its head."""
    decoder = plain.get_decoder()
    return plain.model if decoder is plain else decoder


def _all_followed(plain: Any, tree: TreeMask) -> None:  # noqa: ANN401
    """Refuse results of layers that ignored the tree: they would be silently wrong."""
    layers = plain.config.get_text_config().num_hidden_layers
    if sorted(tree.seen) != list(range(layers)):
        raise ConfigurationError(
            f"{type(plain).__name__} followed the tree in {len(set(tree.seen))} of {layers} layers ({NAME}): "
            "give it to `prepare` first, or pack with `by_row`"
        )


def _label_scores(
    model: Any,  # noqa: ANN401
    outputs: Any,  # noqa: ANN401 - the decoder's, of a type of its own
    *,
    positions: Tensor,
    temperatures: NDArray[np.float32],
    lines: NDArray[np.int64],
    labels: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each label, and the entropy of its line of logits; see `Packed`.

    Lines are computed in portions, and recomputed in the backward pass if there are several.

    :param outputs: what the decoder returned.
    :param places: (p) token of the batch after which each line is read.
    :param temperatures: (p) divisor of the logits of each line.
    :param lines: (l) line of each label, ascending.
    :param labels: (l) the labels.
    """
    states: Tensor = outputs.last_hidden_state.flatten(0, 1)
    head = _Head(model, outputs)
    heat = torch.from_numpy(temperatures).to(states.device)
    line_of = torch.from_numpy(lines).to(states.device)
    portion = max(1, LOGITS // model.config.get_text_config().vocab_size)
    cuts = [*range(0, len(positions), portion), len(positions)]
    label_cuts = np.searchsorted(lines, cuts).tolist()
    values: list[tuple[Tensor, Tensor]] = []
    for number in range(len(cuts) - 1):
        chosen = slice(cuts[number], cuts[number + 1])
        some = slice(label_cuts[number], label_cuts[number + 1])
        parts = (states[positions[chosen]], heat[chosen], line_of[some] - cuts[number], labels[some])
        if len(cuts) > 2 and torch.is_grad_enabled():
            again: Any = checkpoint(_portion, head, *parts, use_reentrant=False, preserve_rng_state=False)
            values.append(again)
        else:
            values.append(_portion(head, *parts))
    label_log_probs, entropies = zip(*values, strict=True)
    return torch.cat(label_log_probs), torch.cat(entropies)


class _Head:
    """Everything that a model computes after its decoder, with its last layer in at least 32 bits.

    Rounded logits would differ from those the engine sampled from. Whatever the model does to its logits, such as a soft
    cap, is done by its own forward.
    """

    def __init__(self, model: Any, outputs: Any) -> None:  # noqa: ANN401
        self._model, self._outputs = model, outputs
        self._layer = layer = model.get_output_embeddings()
        dtype = outputs.last_hidden_state.dtype
        self._precise = torch.promote_types(dtype, torch.float32)
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        # An adapter around the layer has its own forward, which is used.
        if type(layer) is nn.Linear and self._precise != dtype:
            own = dict(layer.named_parameters(recurse=False))
            self._weight = own["weight"].to(self._precise)
            self._bias = own["bias"].to(self._precise) if "bias" in own else None
        self._linear: Any = nn.functional.linear
        if self._weight is not None and self._weight.is_cuda:
            self._linear = linear_of_16_bits

    def __call__(self, states: Tensor) -> Tensor:
        """Return logits."""
        outputs = type(self._outputs)(**{**self._outputs, "last_hidden_state": states[None]})
        ids = torch.zeros((1, len(states)), dtype=torch.long, device=states.device)
        with ExitStack() as stack:
            stack.enter_context(_forward(decoder_of(self._model), lambda *_, **__: outputs))
            if self._weight is not None:
                stack.enter_context(_forward(self._layer, self._precise_layer))
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits[0].to(self._precise)

    def _precise_layer(self, states: Tensor) -> Tensor:
        return self._linear(states.to(self._precise), self._weight, self._bias)


@contextmanager
def _forward(module: nn.Module, forward: Callable[..., Any]) -> Generator[None]:
    """Let a module compute something else inside the block."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def linear_of_16_bits(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer in 32 bits whose inputs and weights have at most 11 significant bits, as those of 16-bit types do.

    The result is exact but for the order of sums. Gradients are rounded to 11 bits before their products.
    """
    out: Tensor = _Linear.apply(inputs, weight, bias)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        """Compute the layer."""
        ctx.save_for_backward(inputs, weight)
        ctx.biased = bias is not None
        with _tensor_cores():
            return nn.functional.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradients that are needed."""
        (grad,) = grad_outputs
        inputs, weight = ctx.saved_tensors
        with _tensor_cores():
            return (
                grad @ weight if ctx.needs_input_grad[0] else None,
                grad.mT @ inputs if ctx.needs_input_grad[1] else None,
                grad.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None,
            )


@contextmanager
def _tensor_cores() -> Generator[None]:
    """Let products of 32-bit numbers use TF32, which has 11 significant bits, inside the block.

    Elsewhere it would be wrong: positions, for example, are such products.
    """
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _portion(
    head: _Head, states: Tensor, temperatures: Tensor, lines: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of labels against some lines."""
    logits = head(states) / temperatures[:, None]
    total = torch.logsumexp(logits, -1)
    entropy = total - (torch.softmax(logits, -1) * logits).sum(-1)
    return logits[lines, labels] - total[lines], entropy[lines]


def _spread(log_prob: Tensor, entropy: Tensor, gather: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Copy the value of each label to every row that has it."""
    if not len(log_prob):
        return log_prob.new_zeros(mask.shape), log_prob.new_zeros(mask.shape)
    return log_prob[gather].masked_fill(~mask, 0.0), entropy[gather].masked_fill(~mask, 0.0)


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _device(plain: Any) -> torch.device:  # noqa: ANN401
    """Return the device of the input embeddings."""
    return plain.get_input_embeddings().weight.device
