"""Tokenizers with the special tokens and chat templates of model families."""

# transformers and tokenizers are partially typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


class Family(NamedTuple):
    """Chat format of a family."""

    special: tuple[str, ...]
    """Its special tokens, the end of a turn first."""
    turn: str
    """Template of one message `m`."""
    opening: str = ""
    """Text before the first message."""
    reply: str = ""
    """Text before an answer."""


FAMILIES: Final = {
    "ChatML": Family(
        ("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n",
        reply="<|im_start|>assistant\n",
    ),
    "Llama 3": Family(
        ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>",
        "<|begin_of_text|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Mistral": Family(
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[SYSTEM_PROMPT]"),
        "{% if m['role'] == 'assistant' %}{{ m['content'] }}</s>"
        "{% else %}[INST]{{ m['content'] }}[/INST]{% endif %}",
        "<s>",
    ),
    "Gemma": Family(
        ("<end_of_turn>", "<bos>", "<eos>", "<start_of_turn>", "<unused7>"),
        "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] }}<end_of_turn>\n",
        "<bos>",
        "<start_of_turn>model\n",
    ),
    "Gemma 4": Family(
        ("<turn|>", "<bos>", "<|turn>", "<|tool_response>", "<tool_response|>"),
        "<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] }}<turn|>\n",
        "<bos>",
        "<|turn>model\n",
    ),
    "DeepSeek": Family(
        ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        "<｜{{ 'Assistant' if m['role'] == 'assistant' else 'User' }}｜>{{ m['content'] }}"
        "{% if m['role'] == 'assistant' %}<｜end▁of▁sentence｜>{% endif %}",
        "<｜begin▁of▁sentence｜>",
        "<｜Assistant｜>",
    ),
    "Harmony": Family(
        ("<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        "<|start|>{{ m['role'] }}<|message|>{{ m['content'] }}<|end|>",
        reply="<|start|>assistant",
    ),
    "MiniMax": Family(
        ("[e~[", "]~!b[", "]~b]"),
        "]~b]{{ 'ai' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] }}[e~[\n",
        "]~!b[",
        "]~b]ai\n",
    ),
}
"""Families by name."""


def tokenizer_of(family: Family) -> Any:  # noqa: ANN401
    """Return a tokenizer with one token for each byte and each special token, and the family's chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner: Any = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    end, *others = family.special
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=end, additional_special_tokens=others
    )
    tokenizer.chat_template = (
        f"{family.opening}{{% for m in messages %}}{family.turn}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{family.reply}{{% endif %}}"
    )
    return tokenizer
