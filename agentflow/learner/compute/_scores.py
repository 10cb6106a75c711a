# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are partially typed.
"""Log-probabilities of the trained tokens of rows: packed as trees, and row by row.

`prepare` makes a model follow trees, and verifies it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from agentflow.errors import ConfigurationError
from agentflow.learner._rows import Row, longest_trained, scoring_row
from agentflow.learner.compute._attention import NAME, Attention
from agentflow.learner.compute._tree import TreeMask
from agentflow.learner.packing import Packed, pack

SHARED, BRANCH = 6, 5
"""Number of tokens in the verification rows: the shared prefix, and each branch."""


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
    tree = TreeMask(packed.ends, packed.positions, device)
    states = _states(
        plain,
        input_ids=_tensor(packed.ids, device)[None],
        position_ids=_tensor(packed.positions, device)[None],
        # A prepared mask, so that transformers builds none. Visibility is the tree's.
        attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device),
        tree=tree,
        attention=attention,
    )
    _all_followed(plain, tree)
    values = _label_scores(
        plain,
        states[0],
        places=_tensor(packed.predicting, device),
        temperatures=packed.temperatures,
        lines=packed.lines,
        labels=_tensor(packed.labels, device),
    )
    return _spread(*values, _tensor(packed.gather, device), _tensor(packed.mask, device))


def scores_by_row(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return the same as `scores` from a padded batch without prefix sharing. See docs/packing.md."""
    plain = plain_model(model)
    device = _device(plain)
    longest = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
    # Padding is on the right, where no token of the row sees it: no mask is needed.
    states = _states(plain, input_ids=_tensor(ids, device))
    trained = [np.flatnonzero(row.trained) for row in rows]
    counts = np.array([len(one) for one in trained])
    mask = np.arange(longest_trained(rows)) < counts[:, None]
    labels = np.repeat(np.arange(len(rows)), counts) * longest + np.concatenate(trained)
    gather = np.zeros(mask.shape, np.int64)
    gather[mask] = np.arange(len(labels))
    values = _label_scores(
        plain,
        states.flatten(0, 1),
        places=_tensor(labels - 1, device),
        temperatures=np.repeat(np.array([row.temperature for row in rows], np.float32), counts),
        lines=np.arange(len(labels)),
        labels=_tensor(ids.reshape(-1)[labels], device),
    )
    return _spread(*values, _tensor(gather, device), _tensor(mask, device))


def plain_model(model: Any) -> Any:  # noqa: ANN401 - transformers' models have no complete common type
    """Return the causal model itself, without the wrapper of adapters: they are in its layers."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise ConfigurationError(
            "adapters that learn a prompt are outside the layers: use LoRA, or train row by row"
        )
    return model.get_base_model()


def _states(plain: Any, **inputs: object) -> Tensor:  # noqa: ANN401
    """Return the input of the head, (batch, tokens, size)."""
    return plain.get_decoder()(**inputs, use_cache=False).last_hidden_state


def _all_followed(plain: Any, tree: TreeMask) -> None:  # noqa: ANN401
    """Refuse results of layers that ignored the tree: they would be silently wrong."""
    layers = plain.config.get_text_config().num_hidden_layers
    if sorted(tree.seen) != list(range(layers)):
        raise ConfigurationError(
            f"{type(plain).__name__} followed the tree in {len(set(tree.seen))} of {layers} layers ({NAME}): "
            "give it to `prepare` first, or train it row by row"
        )


def _label_scores(
    model: Any,  # noqa: ANN401
    states: Tensor,
    *,
    places: Tensor,
    temperatures: NDArray[np.float32],
    lines: NDArray[np.int64],
    labels: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each label, and the entropy of its line of logits; see `Packed`.

    Lines are computed in portions, and recomputed in the backward pass if there are several.

    :param states: (tokens, size) input of the head.
    :param places: (p) token after which each line is read.
    :param temperatures: (p) divisor of the logits of each line.
    :param lines: (l) line of each label, ascending.
    :param labels: (l) the labels.
    """
    head = _Head(model.get_output_embeddings(), states.dtype)
    heat = torch.from_numpy(temperatures).to(states.device)
    line_of = torch.from_numpy(lines).to(states.device)
    portion = max(1, LOGITS // model.config.get_text_config().vocab_size)
    cuts = [*range(0, len(places), portion), len(places)]
    label_cuts = np.searchsorted(lines, cuts).tolist()
    found: list[tuple[Tensor, Tensor]] = []
    for number in range(len(cuts) - 1):
        chosen = slice(cuts[number], cuts[number + 1])
        some = slice(label_cuts[number], label_cuts[number + 1])
        parts = (states[places[chosen]], heat[chosen], line_of[some] - cuts[number], labels[some])
        if len(cuts) > 2 and torch.is_grad_enabled():
            again: Any = checkpoint(_portion, head, *parts, use_reentrant=False, preserve_rng_state=False)
            found.append(again)
        else:
            found.append(_portion(head, *parts))
    found_log_probs, entropies = zip(*found, strict=True)
    return torch.cat(found_log_probs), torch.cat(entropies)


class _Head:
    """The last layer of a model, in at least 32 bits: rounded logits would differ from those the engine sampled from."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:  # noqa: ANN401
        self._layer = layer
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
        if self._weight is None:
            return self._layer(states).to(self._precise)
        return self._linear(states.to(self._precise), self._weight, self._bias)


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


def prepare(model: nn.Module) -> None:
    """Make a causal model of transformers follow trees; plain rows give the same results as before.

    The model is verified on a small tree: layers that ignore the tree would be silently wrong. See docs/packing.md.

    :raises ConfigurationError: if the model can't follow trees; one line with the reason.
    """
    plain = plain_model(model)
    name = type(plain).__name__
    if not hasattr(plain, "set_attn_implementation"):
        raise ConfigurationError(f"{name} is not a causal model of transformers: only those can follow trees")
    config = plain.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        raise ConfigurationError(f"{name} has layers of {', '.join(others)}, which can't follow trees")
    before = plain.config._attn_implementation  # pyright: ignore[reportPrivateUsage] - it has no public name
    plain.set_attn_implementation(NAME)
    if plain.get_input_embeddings().weight.is_meta:
        # Weights are loaded later: only the check of every forward remains.
        return
    training = plain.training
    plain.eval()
    try:
        _verify(plain, name)
    except ConfigurationError:
        plain.set_attn_implementation(before)
        raise
    finally:
        plain.train(training)


def _verify(plain: Any, name: str) -> None:  # noqa: ANN401
    """Compare a tree of two rows with the model's own logits, and check that the branches are independent."""
    precise = plain.get_output_embeddings().weight.dtype in (torch.float32, torch.float64)
    ids = np.arange(SHARED + 2 * BRANCH) % plain.config.get_text_config().vocab_size
    rows = [
        scoring_row(branch.tolist())
        for branch in (ids[: SHARED + BRANCH], np.concatenate((ids[:SHARED], ids[SHARED + BRANCH :])))
    ]
    [packed] = pack(rows)
    with torch.no_grad():
        ours = _packed_scores(plain, packed, name)
        theirs = torch.stack([_own_scores(plain, rows[int(number)]) for number in packed.rows])
        if not _near(ours, theirs, 1e-3 if precise else 0.5):
            raise ConfigurationError(
                f"{name} computes different log-probabilities along a tree than row by row, "
                f"by up to {(ours - theirs).abs().max().item():.2g}: it can't follow trees"
            )
        # The second branch is last.
        moved = np.concatenate((packed.ids[:-BRANCH], (packed.ids[-BRANCH:] + 1) % packed.ids.max()))
        other = _packed_scores(plain, replace(packed, ids=moved), name)
        if not _near(other[0], ours[0], 1e-4 if precise else 0.1):
            raise ConfigurationError(f"{name} lets one branch of a tree see another: it can't follow trees")


def _near(one: Tensor, other: Tensor, most: float) -> bool:
    """Return true if no element differs by more than `most`; NaN differs."""
    return bool(((one - other).abs() <= most).all())


def _packed_scores(plain: Any, packed: Packed, name: str) -> Tensor:  # noqa: ANN401
    """Return the log-probabilities along the tree."""
    try:
        return scores(plain, packed)[0]
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{name} can't follow trees: {reason}") from error


def _own_scores(plain: Any, row: Row) -> Tensor:  # noqa: ANN401
    """Return the log-probabilities of the model's own head, including its postprocessing of logits."""
    ids = torch.from_numpy(row.ids.astype(np.int64)).to(plain.get_input_embeddings().weight.device)
    logits: Tensor = plain(input_ids=ids[None], use_cache=False).logits
    return logits[0].float().log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
