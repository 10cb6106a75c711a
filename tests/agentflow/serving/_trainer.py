"""A minimal trainer: it holds a model, computes log-probabilities, changes and exports it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are only partly typed.

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agentflow.serving import Probe, ProbeText, Weights


def arbitrary_tokens(vocabulary: int, count: int = 160) -> tuple[int, ...]:
    """Return tokens from all over the vocabulary, always the same ones."""
    return tuple(index * 7919 % vocabulary for index in range(1, count + 1))


class Trainer:
    """A model with float32 weights that computes in a data type."""

    def __init__(self, folder: Path | str, dtype: str = "float32") -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._dtype: torch.dtype = getattr(torch, dtype)

    def logprobs(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Return the log-probability of each token but the first."""
        model: Any = self._model
        if self._dtype != torch.float32:
            model = deepcopy(model).to(self._dtype)
        with torch.no_grad():
            scores = model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
        return tuple(scores[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].tolist())

    def probe(self) -> Probe:
        """Texts of tokens from all over the vocabulary."""
        tokens = arbitrary_tokens(self._model.config.vocab_size)
        return Probe(texts=(ProbeText(tokens=tokens, begin=1, logprobs=self.logprobs(tokens)),))

    def step(self, seed: int, size: float = 0.02) -> None:
        """Change every weight, by default considerably."""
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self._model.parameters():
                weight += size * torch.randn(weight.shape, generator=draw)

    def sharpen(self) -> None:
        """Make few tokens likely and rule out all others, as after long training."""
        with torch.no_grad():
            self._model.lm_head.weight *= 40

    def grow(self) -> None:
        """Enlarge the vocabulary."""
        self._model.resize_token_embeddings(self._model.config.vocab_size + 8)

    def export(self, folder: Path, version: str, *, without: str = "") -> Weights:
        """Write the weights, but for one tensor."""
        # A tied head is in no file.
        state = dict(self._model.named_parameters())
        kept = {name: weight.to(self._dtype) for name, weight in state.items() if name != without}
        self._model.config.dtype = self._dtype
        self._model.save_pretrained(folder, state_dict=kept)
        return Weights(folder=folder, version=version)
