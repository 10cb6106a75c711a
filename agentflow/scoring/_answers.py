"""Where a text says its answer."""

import re
from typing import Final

__all__ = ["boxed", "extract_answer", "marked_answer"]

_TAG: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_OPEN_TAG: Final = re.compile(r"<answer>([^<]*)\Z", re.IGNORECASE)
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(\w))")
_FINAL: Final = re.compile(r"\bfinal\s+answer\b[*_`]*(?:\s*(?::|\bis\b:?)|\s*\n)", re.IGNORECASE)
_ANSWER: Final = re.compile(r"\banswer\b[*_`]*\s*(?::|\bis\b:?)", re.IGNORECASE)
_SO: Final = re.compile(
    r"(?:^|[.!?\n]\s*)(?:therefore|thus|hence|so)\b,?\s+([^\n]+)", re.IGNORECASE | re.MULTILINE
)
_FENCE: Final = "*_`\"' \t"


def marked_answer(text: str) -> str | None:
    """The last answer that the text marks as such: `<answer>`, a box, `final answer:`; `None`: it marks none."""
    if tags := _TAG.findall(text) or _OPEN_TAG.findall(text):
        return tags[-1].strip()
    if (box := boxed(text)) is not None:
        return box
    return _after(_FINAL, text)


def extract_answer(text: str) -> str:
    """The answer of a text in prose.

    It is what the text marks, else what follows `answer:` or `the answer is`, else the last conclusion (`therefore`,
    `thus`, `hence`, `so` at the beginning of a sentence), else the last line that says something.
    """
    marked = marked_answer(text)
    if marked is None:
        marked = _after(_ANSWER, text)
    if marked is None and (conclusions := _SO.findall(text)):
        marked = _clean(conclusions[-1])
    if marked is None:
        lines = [line for line in text.splitlines() if line.strip(_FENCE)]
        marked = _clean(lines[-1]) if lines else ""
    return marked


def boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}`, whatever braces are in it; `None`: there is none that ends."""
    for found in reversed(list(_BOX.finditer(text))):
        if found[1] is not None:
            return found[1]
        depth = 1
        for place in range(found.end(), len(text)):
            escaped = text[place - 1] == "\\"
            depth += (text[place] == "{" and not escaped) - (text[place] == "}" and not escaped)
            if depth == 0:
                return text[found.end() : place].strip()
    return None


def _after(mark: re.Pattern[str], text: str) -> str | None:
    """The line that follows the last such mark; if nothing is left of it, the next one."""
    for found in reversed(list(mark.finditer(text))):
        rest = [line for line in text[found.end() :].splitlines() if line.strip(_FENCE)]
        if rest:
            return _clean(rest[0])
    return None


def _clean(line: str) -> str:
    bare = line.strip(_FENCE).lstrip(":").strip(_FENCE)
    # The full stop of a sentence goes, that of an abbreviation may be part of the answer: metrics don't mind it.
    return bare.removesuffix(".").rstrip(_FENCE) if not re.search(r"\b\w\.\w\.$", bare) else bare
