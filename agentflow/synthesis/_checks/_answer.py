"""Check of the answer."""

from typing import Final

from agentflow.text import normalise, word_count

LONGEST_ANSWER: Final = 30
"""Maximum number of words of an answer."""
_NO_ANSWERS: Final = frozenset(
    {"unknown", "n/a", "na", "unclear", "undetermined", "not known", "not available", "not specified", "not stated",
     "not mentioned", "not given", "cannot be determined", "can't be determined", "don't know", "i don't know",
     "i do not know", "no answer", "no information", "it is unknown", "it is not known", "未知", "不知道", "无法确定"}
)  # fmt: skip


def is_an_answer(answer: str) -> str:
    """Return the reason that this is no answer, or an empty text."""
    said = normalise(answer).strip(" .!?\"'。")
    if not any(character.isalnum() for character in said):
        return "the answer is empty"
    if said in _NO_ANSWERS:
        return f"the answer says nothing: {answer.strip()}"
    length = word_count(answer)
    if length > LONGEST_ANSWER:
        return f"the answer has {length:.0f} words: at most {LONGEST_ANSWER}"
    return ""
