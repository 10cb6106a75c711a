"""Log-probabilities of the trained tokens of rows: packed as trees, and row by row."""

# pyright: reportUnknownMemberType=false
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agentflow.errors import ConfigurationError
from agentflow.learner._rows import Row, longest_trained
from agentflow.learner.compute._attention import NAME, Attention
from agentflow.learner.compute._head import Asked, label_scores
from agentflow.learner.compute._tree import Tree
from agentflow.learner.packing import Packed

__all__ = ["Scores", "log_probs", "log_probs_by_row", "plain_model", "scores", "scores_by_row"]


class Scores(NamedTuple):
    """What a model says of trained tokens, one line for each row, left-aligned and 0 where the row has ended."""

    log_probs: Tensor
    """(rows, longest) The log-probability of each token at its row's temperature, in no less than 32 bits."""
    entropy: Tensor
    """(rows, longest) The entropy of what it was drawn from."""


def log_probs(model: nn.Module, packed: Packed, *, attention: Attention = "auto") -> Tensor:
    """(rows, longest) The log-probability of each trained token: line `k` is that of row `packed.rows[k]`.

    The model must have been given to `prepare`. Each token is forwarded once.
    """
    return scores(model, packed, attention=attention).log_probs


def log_probs_by_row(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """(rows, longest) The same of rows that share nothing: a batch of them, padded. The reference for `log_probs`."""
    return scores_by_row(model, rows).log_probs


def scores(model: nn.Module, packed: Packed, *, attention: Attention = "auto") -> Scores:
    """What the model says of the trained tokens of packed rows; see `log_probs`.

    :raises ConfigurationError: a layer of the model has not followed the tree.
    """
    plain = plain_model(model)
    device = _device(plain)
    tree = Tree(packed.ends, packed.positions, device)
    states = _states(
        plain,
        input_ids=_tensor(packed.ids, device)[None],
        position_ids=_tensor(packed.positions, device)[None],
        # A mask that is prepared already: none is built. What shows is the tree's.
        attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device),
        tree=tree,
        attention=attention,
    )
    _all_followed(plain, tree)
    asked = Asked(
        states=states[0],
        places=_tensor(packed.predicting, device),
        temperatures=packed.temperatures,
        lines=packed.lines,
        labels=_tensor(packed.labels, device),
    )
    return _spread(*label_scores(plain, asked), _tensor(packed.gather, device), _tensor(packed.mask, device))


def scores_by_row(model: nn.Module, rows: Sequence[Row]) -> Scores:
    """What the model says of the trained tokens of rows; see `log_probs_by_row`."""
    plain = plain_model(model)
    device = _device(plain)
    longest = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
    # Padding stands on the right, where no token of the row sees it: no mask is needed.
    states = _states(plain, input_ids=_tensor(ids, device))
    trained = [np.flatnonzero(row.trained) for row in rows]
    counts = np.array([len(one) for one in trained])
    mask = np.arange(longest_trained(rows)) < counts[:, None]
    labels = np.repeat(np.arange(len(rows)), counts) * longest + np.concatenate(trained)
    gather = np.zeros(mask.shape, np.int64)
    gather[mask] = np.arange(len(labels))
    asked = Asked(
        states=states.flatten(0, 1),
        places=_tensor(labels - 1, device),
        temperatures=np.repeat(np.array([row.temperature for row in rows], np.float32), counts),
        lines=np.arange(len(labels)),
        labels=_tensor(ids.reshape(-1)[labels], device),
    )
    return _spread(*label_scores(plain, asked), _tensor(gather, device), _tensor(mask, device))


def plain_model(model: nn.Module) -> Any:  # noqa: ANN401 - transformers' models have no common type that is whole
    """The causal model itself, where adapters are wrapped around it: they are in its layers."""
    if not hasattr(model, "get_base_model"):
        return model
    wrapped = cast("Any", model)
    if getattr(wrapped.active_peft_config, "is_prompt_learning", False):
        raise ConfigurationError(
            "adapters that learn a prompt stand outside of the layers: use LoRA, or train row by row"
        )
    return wrapped.get_base_model()


def _states(plain: Any, **inputs: object) -> Tensor:  # noqa: ANN401
    """(batch, tokens, size) What the head reads."""
    return plain.get_decoder()(**inputs, use_cache=False).last_hidden_state


def _all_followed(plain: Any, tree: Tree) -> None:  # noqa: ANN401
    """Refuse what was computed by layers that never saw the tree: it would be wrong, and nothing would tell."""
    layers = plain.config.get_text_config().num_hidden_layers
    if sorted(tree.seen) != list(range(layers)):
        raise ConfigurationError(
            f"{type(plain).__name__} followed the tree in {len(set(tree.seen))} of {layers} layers ({NAME}): "
            "give it to `prepare` first, or train it row by row"
        )


def _spread(log_prob: Tensor, entropy: Tensor, gather: Tensor, mask: Tensor) -> Scores:
    """Give every row what was computed once."""
    if not len(log_prob):
        return Scores(log_prob.new_zeros(mask.shape), log_prob.new_zeros(mask.shape))
    return Scores(log_prob[gather].masked_fill(~mask, 0.0), entropy[gather].masked_fill(~mask, 0.0))


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array where the computing is done."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def _device(plain: Any) -> torch.device:  # noqa: ANN401
    """Where tokens enter the model."""
    return plain.get_input_embeddings().weight.device
