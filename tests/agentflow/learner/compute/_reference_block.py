"""A reference transformer that computes entirely in the precision of its weights.

Those of transformers pass through 32 bits in places, which hides any difference below 1e-7.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from agentflow.learner.compute._attention import attend

WIDTH, HEADS, SHARING, SIZE, LAYERS, WORDS = 16, 4, 2, 4, 2, 64


class Layer(nn.Module):
    """Attention with rotary positions, heads of keys that are shared, and a gated step."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.num_key_value_groups = SHARING
        self.query = nn.Linear(WIDTH, HEADS * SIZE)
        self.key = nn.Linear(WIDTH, HEADS // SHARING * SIZE)
        self.value = nn.Linear(WIDTH, HEADS // SHARING * SIZE)
        self.out = nn.Linear(HEADS * SIZE, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, states: Tensor, positions: Tensor, **tree: Any) -> Tensor:  # noqa: ANN401 - as `attend`
        read = normal(states)
        heads = [
            part(read).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        seen, _ = attend(
            self, turned(heads[0], positions), turned(heads[1], positions), heads[2], None, **tree
        )
        states = states + self.out(seen.flatten(2))
        gate, up = self.up(normal(states)).chunk(2, -1)
        return states + self.down(nn.functional.silu(gate) * up)


def normal(states: Tensor) -> Tensor:
    """Of length 1, on average."""
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)


def turned(heads: Tensor, positions: Tensor) -> Tensor:
    """Each pair of entries turned by an angle that grows with the position."""
    speeds = 0.1 ** torch.arange(SIZE // 2, dtype=heads.dtype)
    angles = (positions[..., None] * speeds)[:, None]
    one, other = heads.chunk(2, -1)
    return torch.cat(
        (one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()), -1
    )


class ReferenceModel(nn.Module):
    """Interface of a causal model that the learner uses."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = ReferenceDecoder()
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.to(dtype)
        text = SimpleNamespace(num_hidden_layers=LAYERS, vocab_size=WORDS)
        self.config = SimpleNamespace(get_text_config=lambda: text)

    def forward(self, **inputs: Any) -> CausalLMOutput:  # noqa: ANN401 - as the decoder
        return CausalLMOutput(logits=self.head(self.model(**inputs).last_hidden_state))

    def get_decoder(self) -> nn.Module:
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class ReferenceDecoder(nn.Module):
    """All layers but the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer(number) for number in range(LAYERS)])

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        use_cache: bool = False,
        **tree: Any,  # noqa: ANN401 - as `attend`
    ) -> BaseModelOutput:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        states = self.embedding(input_ids)
        for layer in self.layers:
            states = layer(states, position_ids, **tree)
        return BaseModelOutput(last_hidden_state=normal(states))
