# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""A tiny language model: random weights, and a tokenizer trained on given texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agentflow.testing import tiny_tokenizer
from examples.library.plan import Shape

__all__ = ["make_model"]

HEAD_SIZE = 32
SPREAD = 0.08
"""Scale of the initial weights. With the usual 0.02 a model this narrow needs twice as long to copy a name."""
CONTEXT = 1024


def make_model(
    folder: Path, texts: Iterable[str], shape: Shape, seed: int, *, numbers: Sequence[int | str] = ()
) -> Path:
    """Make the model so that it copies before it is trained.

    The head is initialised as a copy of the embeddings, and not tied to them. Keys are
    initialised as queries, so a token attends to similar ones. Outputs are initialised as inverse values, so attended values pass
    through unchanged.

    :param texts: training texts of the tokenizer.
    :param numbers: numbers, or words, that are one token after a blank. Other readers of a Qwen2 tokenizer split all
        other numbers into digits.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer(shape.words, texts=texts)
    tokenizer.add_tokens([f" {number}" for number in numbers])
    torch.manual_seed(seed)
    width = shape.heads * HEAD_SIZE
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        weights = dict(model.named_parameters())
        for layer in range(shape.layers):
            attention = f"model.layers.{layer}.self_attn"
            weights[f"{attention}.k_proj.weight"].copy_(weights[f"{attention}.q_proj.weight"])
            weights[f"{attention}.o_proj.weight"].copy_(weights[f"{attention}.v_proj.weight"].T)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
