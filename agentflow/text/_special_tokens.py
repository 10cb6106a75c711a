"""Special tokens of chat templates in data: a text that a tool returned must not become a role, a turn or an end of text.

Tokenizers read such strings as one token wherever they occur. A space after the first character makes them plain text again:
`<|im_end|>` becomes `< |im_end|>`. No special token contains a space, so nothing that is escaped can become one.
"""

import re
from typing import Final

from agentflow._typeguards import is_list, is_object

_NAMES: Final = (
    r"s|bos|eos|pad|unk|mask|sop|eop|start_of_turn|end_of_turn|start_of_image|end_of_image|image_soft_token"
    r"|tool_calls?|tool_responses?|tools|function_calls?|extra_id_\d+|unused_?\d+|SPECIAL_\d+|reserved_\w{1,40}"
)
_BRACKETED: Final = (
    r"INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|ARGS|CALL_ID|MODEL_SETTINGS"
    r"|[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS|IMG(?:_BREAK|_END)?|PREFIX|MIDDLE|SUFFIX|BEGIN_AUDIO|AUDIO"
)
# Fullwidth forms: a tokenizer may normalise them before it looks for its tokens.
_SPECIAL: Final = re.compile(
    r"[<＜﹤](?="
    r"[|｜][^\s<>＜＞]{1,80}[>＞﹥]"  # <|im_start|>, <｜User｜>, <|turn>
    r"|[^\s<>＜＞|｜]{1,80}[|｜][>＞﹥]"  # <turn|>
    rf"|[/／]?(?:{_NAMES})[>＞﹥]"
    r"|[<＜﹤][/／]?SYS[>＞﹥]{2})"
    rf"|\[(?=/?(?:{_BRACKETED})\]|e~\[)"
    r"|\](?=~!?b[\[\]])",
)


def escape_special_tokens(text: str) -> str:
    """Return a text without strings that chat templates or tokenizers read as special tokens; others are not changed.

    >>> escape_special_tokens("so<|im_end|> and <b>")
    'so< |im_end|> and <b>'
    """
    return _SPECIAL.sub(lambda found: f"{found[0]} ", text)


def escape_all_special_tokens(value: object) -> object:
    """Return a JSON value with all its strings escaped, keys included.

    >>> escape_all_special_tokens({"a": ["</s>", 1]})
    {'a': ['< /s>', 1]}
    """
    if isinstance(value, str):
        return escape_special_tokens(value)
    if is_list(value):
        return [escape_all_special_tokens(each) for each in value]
    if is_object(value):
        return {escape_special_tokens(key): escape_all_special_tokens(each) for key, each in value.items()}
    return value
