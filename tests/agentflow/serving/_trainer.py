"""A minimal trainer: it holds a model, computes log-probabilities, changes and exports it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are only partly typed.

import shutil
from pathlib import Path
from typing import Self

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentflow.serving import Probe, Weights, probe_tokens


class Trainer:
    """A model in fp32."""

    def __init__(self, folder: Path | str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @classmethod
    def tied(cls, original: Path, folder: Path) -> Self:
        """Return a copy of a model with random weights, and a head that is tied to its embeddings."""
        shutil.copytree(original, folder)
        config = AutoConfig.from_pretrained(folder)
        config.tie_word_embeddings = True
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        return cls(folder)

    def logprobs(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Return the log-probability of each token but the first."""
        with torch.no_grad():
            scores = self._model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return tuple(scores[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].tolist())

    def probe(self) -> Probe:
        tokens = probe_tokens(self._model.config.vocab_size)
        return Probe(tokens=tokens, logprobs=self.logprobs(tokens))

    def step(self, seed: int) -> None:
        """Change every weight considerably."""
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self._model.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=draw)

    def sharpen(self) -> None:
        """Make few tokens likely and rule out all others, as after long training."""
        with torch.no_grad():
            self._model.lm_head.weight *= 40

    def grow(self) -> None:
        """Enlarge the vocabulary."""
        self._model.resize_token_embeddings(self._model.config.vocab_size + 8)

    def export(self, folder: Path, version: str) -> Weights:
        self._model.save_pretrained(folder)
        return Weights(folder=folder, version=version)
