"""Multiple choice: a letter, or the text of an option."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Final

from agentflow.scoring._answers import extract_answer
from agentflow.scoring._words import contains_answer
from agentflow.text import normalise_squad

_LABEL: Final = re.compile(
    r"\s*[*_]*(?:option|choice|answer)?\s*[(\[]?([A-Za-z])[)\]]?[*_]*\s*(?:[.:)\]]\s*(.*)|$)",
    re.DOTALL | re.IGNORECASE,
)
_NAMED: Final = re.compile(
    r"\b(?:option|choice|answer)\s+(?:is\s+)?[*_(\[]*([A-Z])\b|(?<!\w)[(\[]([A-Z])[)\]]"
)


def multiple_choice(
    prediction: str, references: Sequence[str], *, options: Mapping[str, str] | Sequence[str] = ()
) -> float:
    """Return 1 if the prediction chooses the right option, by its letter, its text, or both.

    :param options: the options: texts by letter, or texts in order. A reference is a letter, a text, or both (`A. 0.9`).
    """
    if isinstance(options, Mapping):
        offered = {letter.upper(): text for letter, text in options.items()}
    else:
        offered = dict(zip(ascii_uppercase, options, strict=False))
    chosen = _chosen(extract_answer(prediction), offered)
    if chosen is None:
        chosen = _chosen(prediction, offered)
    return float(chosen is not None and chosen in {_chosen(each, offered) for each in references})


def _chosen(text: str, offered: Mapping[str, str]) -> str | None:
    """Return the chosen letter, or without known options the text; `None` if it is ambiguous."""
    alike = [letter for letter, option in offered.items() if normalise_squad(option) == normalise_squad(text)]
    if len(alike) == 1:
        return alike[0]
    label = _LABEL.fullmatch(text.strip())
    if label and (not offered or label[1].upper() in offered):
        letter, rest = label[1].upper(), label[2] or ""
        others = [
            option
            for each, option in offered.items()
            if each != letter and normalise_squad(option) == normalise_squad(rest)
        ]
        # A letter with the text or the letter of another option is ambiguous.
        return None if (others and normalise_squad(rest)) or _named(rest) - {letter} else letter
    named = _named(text)
    if len(named) == 1 and (not offered or named <= offered.keys()):
        return named.pop()
    if not offered:
        return normalise_squad(text) or None
    return _only_named(text, offered)


def _named(text: str) -> set[str]:
    return {one or other for one, other in _NAMED.findall(text)}


def _only_named(text: str, offered: Mapping[str, str]) -> str | None:
    """Return the one option whose text occurs; an option contained in another occurring one does not count."""
    found = [letter for letter, option in offered.items() if contains_answer(text, [option])]
    longest = [
        letter
        for letter in found
        if not any(contains_answer(offered[each], [offered[letter]]) for each in found if each != letter)
    ]
    return longest[0] if len(longest) == 1 else None
