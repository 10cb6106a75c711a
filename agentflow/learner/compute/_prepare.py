# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are partially typed.
"""Find out whether a model follows trees, and verify it on a small copy in float32."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from agentflow.errors import ConfigurationError
from agentflow.learner.compute._attention import NAME, decoder_of, plain_model, scores
from agentflow.learner.packing import Packed, Row, pack, scoring_row

SHARED, BRANCHES = 6, (5, 7)
"""Number of tokens in the verification rows: the shared prefix, and each branch."""
WINDOW = 4
"""Sliding window of the copy: shorter than the rows, so that they show it."""
TOLERANCE = 1e-3
"""Maximum difference of log-probabilities in float32."""
FOLLOWING = {"full_attention", "sliding_attention"}
"""Types of layers that follow trees."""
FAILURES = (AttributeError, LookupError, RuntimeError, TypeError, ValueError, ConfigurationError)
"""Errors of a forward that is not made for its input."""

_log = structlog.get_logger(__name__)


def prepare(model: nn.Module) -> bool:
    """Make a causal model of transformers follow trees; plain rows give the same results as before.

    The model is verified on a small copy: layers that ignore the tree would be silently wrong. If it can't follow
    trees, it is left as it was and the log gives the reason: pack its rows with `by_row`. See docs/packing.md.

    :return: true if the model follows trees.
    :raises ConfigurationError: if its log-probabilities can't be computed row by row either; one line with the reason.
    """
    plain = plain_model(model)
    name = type(plain).__name__
    if not hasattr(plain, "set_attn_implementation"):
        raise ConfigurationError(f"{name} is not a causal model of transformers: only those can be trained")
    before = plain.config._attn_implementation  # pyright: ignore[reportPrivateUsage] - it has no public name
    # Weights that are loaded later can't be compared: only the check of every forward remains.
    small = None if plain.get_input_embeddings().weight.is_meta else _Small(plain)
    try:
        types = getattr(plain.config.get_text_config(), "layer_types", None) or ()
        if others := sorted(set(types) - FOLLOWING):
            raise _CantFollowError(f"layers of {', '.join(others)}")
        _set_attention(plain, NAME)
        if small:
            small.verify_trees()
    except _CantFollowError as problem:
        plain.set_attn_implementation(before)
        if small:
            small.verify_rows()
        _log.warning(f"{name} can't follow trees; computing row by row", reason=str(problem))
        return False
    return True


class _CantFollowError(Exception):
    """A model can't follow trees; the message is the reason."""


def _set_attention(plain: Any, name: str) -> None:  # noqa: ANN401
    try:
        plain.set_attn_implementation(name)
    except FAILURES as error:
        raise _CantFollowError(_first_line(error)) from error


class _Small:
    """A copy of a model in float32, with one layer of each kind and a vocabulary of a few tokens."""

    def __init__(self, plain: Any) -> None:  # noqa: ANN401
        count = SHARED + sum(BRANCHES)
        self._name = type(plain).__name__
        self._model = _copied(plain, count)
        tokens = np.arange(count) % self._model.config.get_text_config().vocab_size
        cut = SHARED + BRANCHES[0]
        self._rows = [
            scoring_row(row.tolist())
            for row in (tokens[:cut], np.concatenate((tokens[:SHARED], tokens[cut:])))
        ]
        try:
            self._own = [_own_scores(self._model, row) for row in self._rows]
        except FAILURES as error:
            raise ConfigurationError(
                f"{self._name} can't be computed on rows: {_first_line(error)}"
            ) from error

    def verify_trees(self) -> None:
        """Compare a tree with each row alone, and check that its branches are independent.

        :raises _CantFollowError: if something differs.
        """
        _set_attention(self._model, NAME)
        self._compare("in a batch", by_row=True)
        packed, ours = self._compare("along a tree", by_row=False)
        # The second branch is last.
        length = len(self._rows[packed.rows[-1]].ids) - SHARED
        moved = np.concatenate((packed.ids[:-length], np.roll(packed.ids[-length:], 1)))
        if not _near(self._scores(replace(packed, ids=moved))[0], ours[0]):
            raise _CantFollowError("one branch of a tree sees another")

    def verify_rows(self) -> None:
        """Compare a padded batch with each row alone.

        :raises ConfigurationError: if it differs.
        """
        try:
            self._compare("in a batch", by_row=True)
        except _CantFollowError as error:
            raise ConfigurationError(f"{self._name} can't be trained: {error}") from error

    def _compare(self, where: str, *, by_row: bool) -> tuple[Packed, Tensor]:
        """Return the packed rows and their log-probabilities, if they are those of each row alone."""
        [packed] = pack(self._rows, by_row=by_row)
        ours = self._scores(packed)
        theirs = nn.utils.rnn.pad_sequence([self._own[number] for number in packed.rows], batch_first=True)
        if not _near(ours, theirs):
            apart = (ours - theirs).abs().max().item()
            raise _CantFollowError(
                f"log-probabilities {where} differ from those of each row alone by up to {apart:.2g}"
            )
        return packed, ours

    def _scores(self, packed: Packed) -> Tensor:
        try:
            with torch.no_grad():
                return scores(self._model, packed)[0]
        except FAILURES as error:
            raise _CantFollowError(_first_line(error)) from error


def _copied(plain: Any, count: int) -> Any:  # noqa: ANN401
    """Return a small copy of a model: its own modules, with few of their weights."""
    config = plain.config.get_text_config()
    layers = _layers(decoder_of(plain), config.num_hidden_layers)
    # Layers of one kind have the same modules and settings.
    kinds = {_kind(layer, config, number): number for number, layer in reversed([*enumerate(layers)])}
    chosen = sorted(kinds.values())
    embedding, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    vocabulary = {id(one) for layer in (embedding, head) for one in layer.parameters(recurse=False)}
    size = min(embedding.weight.shape[0], head.weight.shape[0])
    # Neighbours in a vocabulary may be unused, and equal.
    tokens = torch.linspace(0, size - 1, count).long().unique().to(embedding.weight.device)
    dropped = {
        id(one) for number, layer in enumerate(layers) if number not in chosen for one in layer.parameters()
    }
    dropped -= {id(one) for number in chosen for one in layers[number].parameters()}
    memo: dict[int, Any] = {}
    for one in plain.parameters():
        if id(one) not in dropped:
            weight = one.detach()[tokens] if id(one) in vocabulary else one.detach()
            memo[id(one)] = nn.Parameter(_of_unit_gain(weight), requires_grad=False)
    memo[id(layers)] = kept = nn.ModuleList()
    kept.extend(copy.deepcopy(layers[number], memo) for number in chosen)
    small = copy.deepcopy(plain, memo).float().eval()
    _set_sizes(small, kept, chosen, len(tokens))
    return small


def _set_sizes(small: Any, kept: nn.ModuleList, chosen: Sequence[int], vocabulary: int) -> None:  # noqa: ANN401
    """Adapt settings to the layers and the vocabulary that are left, with a window that is shorter than the rows."""
    config = small.config.get_text_config()
    count = config.num_hidden_layers
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == count:
            setattr(config, name, [value[number] for number in chosen])
    config.num_hidden_layers, config.vocab_size = len(chosen), vocabulary
    small.get_input_embeddings().padding_idx = None
    for number, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", number)  # noqa: B010 - an attribute that not every module has
    for holder in (config, *kept.modules()):
        for name, value in list(vars(holder).items()):
            if "window" in name and type(value) is int:
                setattr(holder, name, min(value, WINDOW))


def _layers(decoder: nn.Module, count: int) -> nn.ModuleList:
    """Return the layers of a decoder."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ConfigurationError(
        f"{type(decoder).__name__} has no list of its {count} layers: it can't be trained"
    )


def _kind(layer: nn.Module, config: Any, number: int) -> tuple[object, ...]:  # noqa: ANN401
    """Return what distinguishes a layer from others: its settings and those of its modules."""
    lists = (value for value in vars(config).values() if isinstance(value, list))
    return (
        *(repr(value[number]) for value in lists if len(value) == config.num_hidden_layers),
        *(_settings(module) for module in layer.modules()),
        *(one.shape for one in layer.parameters()),
    )


def _settings(module: nn.Module) -> tuple[object, ...]:
    return type(module), *(
        (name, value)
        for name, value in vars(module).items()
        if name not in {"layer_idx", "training"}
        and (value is None or callable(value) or isinstance(value, bool | int | float | str))
    )


def _of_unit_gain(weight: Tensor) -> Tensor:
    """Return a weight in float32, a matrix so scaled that a difference in its input shows in its output."""
    weight = weight.to(torch.float32, copy=True)
    spread = weight.std().item() * weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.0
    return weight.div_(spread) if spread else weight


def _near(ours: Tensor, theirs: Tensor) -> bool:
    """Return true if no element differs by more than the tolerance; NaN differs."""
    return bool(((ours - theirs).abs() <= TOLERANCE).all())


def _own_scores(plain: Any, row: Row) -> Tensor:  # noqa: ANN401
    """Return the log-probabilities of the model's own forward."""
    ids = torch.from_numpy(row.ids.astype(np.int64)).to(plain.get_input_embeddings().weight.device)
    with torch.no_grad():
        logits: Tensor = plain(input_ids=ids[None], use_cache=False).logits
    return logits[0].log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
