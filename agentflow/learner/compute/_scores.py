# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are partially typed.
"""Log-probabilities of the trained tokens of rows: packed as trees, and row by row."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from agentflow.errors import ConfigurationError
from agentflow.learner.compute._attention import NAME, Attention, TreeMask
from agentflow.learner.packing import Packed, Row, pack

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
