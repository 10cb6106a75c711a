# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is typed in part only)
"""A tiny language model, made on the spot: random weights, and a tokenizer that has read the corpus and the teacher."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agentflow.testing import tiny_tokenizer
from examples.first_training.plan import Shape

__all__ = ["make_model"]

HEAD_SIZE = 32
SPREAD = 0.08
"""Of the first weights. With the usual 0.02 a model this narrow takes twice as long until it says a name again."""
CONTEXT = 1024


def make_model(
    folder: Path, texts: Iterable[str], shape: Shape, seed: int, *, numbers: Sequence[int] = ()
) -> Path:
    """Make it, so that it copies before it has learned anything.

    Its head begins as its embeddings: what comes out is what was looked at. It is not tied to them: an engine on a CPU keeps
    a stale head otherwise. Keys begin as queries: a token looks for those like itself. Outputs begin as values turned back:
    what is looked at comes through as it is.

    :param texts: what its tokenizer is trained on.
    :param numbers: those that are one token after a blank, as words are. Whoever reads the tokenizer of a Qwen2 takes all
        others to digits.
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
