"""Tiny causal models with random weights, scaled so that every token has a distinct probability."""

# pyright: reportUnknownMemberType=false
# transformers is typed in part.

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCABULARY = 64
"""Tokens that the tiny models know: 0 to 63."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_WINDOW: dict[str, Any] = {
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_LINEAR: dict[str, Any] = {
    "full_attention_interval": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 8}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        _WINDOW | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, _WINDOW),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM, _WINDOW | _EXPERTS),
    "granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 4.0}),
    "cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 0.3}),
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM, _LINEAR | _EXPERTS),
}
KINDS = list(_KINDS)
"""Families of models."""


def tiny_model(
    seed: int = 0,
    *,
    kind: str = "qwen3",
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    **shape: object,
) -> torch.nn.Module:
    """A causal model; the same seed gives the same weights. `shape` are further entries of its configuration."""
    config, causal, own = _KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = causal(config(**_SHAPE | own | {"tie_word_embeddings": tied} | shape))
    return model.to(dtype=dtype).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose words are `w0` to `w63`."""
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer: Any = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w0", unk_token="w0")


def save_tiny_model(folder: Path, seed: int = 0, *, kind: str = "qwen3", tied: bool = False) -> Path:
    """The folder of a model as a hub has it: weights, configuration, tokenizer."""
    model: Any = tiny_model(seed, kind=kind, tied=tied)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
