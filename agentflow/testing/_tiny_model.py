"""Create a tiny language model with random weights: `python _tiny_model.py FOLDER TEXT...`.

It has two layers, and a byte-level tokenizer trained on the texts (files of any kind), with a chat template. Equal
arguments give equal models. Embeddings are not tied to the head, because engines on a CPU keep a stale tied head after
a weight update. Run it with a Python environment that has `torch` and `transformers`.
"""

# pyright: basic, reportMissingImports=false, reportUnknownMemberType=false

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}<tools>\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user\n"
    "<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% elif not (tools and loop.first and message.role == 'system') %}<|im_start|>{{ message.role }}\n"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    "{{ '\n' if message.content or not loop.first }}<tool_call>\n"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template with tools: the text of a conversation is a prefix of the text of any continuation."""

HEADS = 2
HEAD_SIZE = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Create the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--words", type=int, default=2048, help="vocabulary size")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=16384, help="maximum sequence length")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args(arguments)

    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer(parsed.words, files=parsed.texts)
    torch.manual_seed(parsed.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HEADS * HEAD_SIZE,
        intermediate_size=4 * HEADS * HEAD_SIZE,
        num_hidden_layers=parsed.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=parsed.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(parsed.folder)
    tokenizer.save_pretrained(parsed.folder)


def tiny_tokenizer(words: int, *, files: Iterable[Path] = (), texts: Iterable[str] = ()) -> Any:  # noqa: ANN401 - of a library that is typed in part
    """Train a byte-level tokenizer of that vocabulary size on the files, or else on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if read := [str(file) for file in files]:
        inner.train(read, trainer)
    else:
        inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


if __name__ == "__main__":
    main()
