"""Extraction of the answer from a text."""

import re
from typing import Final

_TAG: Final = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(\w))")
_BRACE: Final = re.compile(r"(?<!\\)[{}]")
_FINAL: Final = re.compile(r"\bfinal answer\b[*_`]*(?: ?:| is\b:?|\n)", re.IGNORECASE)
_ANSWER: Final = re.compile(r"(?:\banswer|(?m:^)[*_`]*ans)\b[*_`]*(?: ?:| is\b:?)", re.IGNORECASE)
_SO: Final = re.compile(r"(?:^|[.!?] )(?:therefore|thus|hence|so)\b,? (.+)$", re.IGNORECASE | re.MULTILINE)
_FENCE: Final = "*_`\"' \t"


def marked_answer(text: str) -> str | None:
    """Return the last marked answer (`<answer>`, a box, `####` in the last line, `final answer:`), or `None`.

    >>> marked_answer("Thus <answer>5 km</answer>.")
    '5 km'
    """
    if (tagged := _tagged(text)) is not None:
        return _inner(tagged)
    if (box := boxed(text)) is not None:
        return box
    if (hashes := _after_hashes(text)) is not None:
        return hashes
    return _after(_FINAL, tidy(text))


def named_answer(text: str) -> str | None:
    """Return the answer marked by `<answer>` or `####`, which only our formats use; `None` without one."""
    tagged = _tagged(text)
    return _after_hashes(text) if tagged is None else tagged


def short_answer(text: str) -> str:
    """Return the marked answer; without one, the whole text."""
    marked = marked_answer(text)
    return text if marked is None else marked


def extract_answer(text: str) -> str:
    """Return the answer of a text in prose.

    This is the marked answer, else the text after `answer:` or `the answer is`, else the last conclusion (`therefore`,
    `thus`, `hence`, `so` at the beginning of a sentence), else the last line with content.

    >>> extract_answer("It is old. The answer is Paris.")
    'Paris'
    """
    marked = marked_answer(text)
    plain = tidy(text)
    if marked is None:
        marked = _after(_ANSWER, plain)
    if marked is None and (conclusions := _SO.findall(plain)):
        marked = _clean(conclusions[-1])
    if marked is None:
        lines = [line for line in plain.splitlines() if line.strip(_FENCE)]
        marked = _clean(lines[-1]) if lines else ""
    return marked


def tidy(text: str) -> str:
    """Return the lines with content, with single spaces. Patterns that skip spaces are slow on many of them."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{…}`, with nested braces; `None` if there is none."""
    begins = {match.end(): match[1] for match in _BOX.finditer(text)}
    last = max((begin for begin, single in begins.items() if single), default=-1)
    answer = begins.get(last)
    open_braces: list[int] = []
    for brace in _BRACE.finditer(text) if begins else ():
        if brace[0] == "{":
            open_braces.append(brace.end())
        elif open_braces and (begin := open_braces.pop()) in begins and begin > last:
            last, answer = begin, text[begin : brace.start()].strip()
    return answer


def _tagged(text: str) -> str | None:
    """Return the content of the last pair of tags; without a pair, the text after an unclosed tag."""
    begin, answer = -1, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            begin = tag.end()
        elif begin >= 0:
            begin, answer = -1, text[begin : tag.start()].strip()
    if answer is None and begin >= 0 and "<" not in text[begin:]:
        return text[begin:].strip()
    return answer


def _inner(tagged: str) -> str:
    """Return the box in a tag, if there is one."""
    box = boxed(tagged)
    return tagged.strip("*` \t\n") if box is None else box


def _after_hashes(text: str) -> str | None:
    """Return the answer that GSM8K writes after `####` in the last line."""
    last = text.rstrip().rpartition("\n")[2].strip()
    return last.removeprefix("####").strip(_FENCE) or None if last.startswith("####") else None


def _after(mark: re.Pattern[str], text: str) -> str | None:
    """Return the rest of the line after the last marker; if it is empty, the next line."""
    for match in reversed(list(mark.finditer(text))):
        rest = text[match.end() :].strip(_FENCE + "\n")
        if rest:
            return _clean(rest.partition("\n")[0])
    return None


def _clean(line: str) -> str:
    bare = line.strip(_FENCE).lstrip(":").strip(_FENCE)
    # Drop the full stop of a sentence. The one of an abbreviation may go, too: metrics ignore it.
    return bare.removesuffix(".").rstrip(_FENCE) if not re.search(r"\b\w\.\w\.$", bare) else bare
