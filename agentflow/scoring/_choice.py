"""Multiple choice: the option that a text chooses."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Final

from agentflow.scoring._answers import extract_answer
from agentflow.scoring._text_rules import contains_answer
from agentflow.text import normalise_squad, without_reasoning

_LABEL: Final = re.compile(
    r"\s*[*_`\"']*(?:option|choice|answer)?\s*[(\[]?([A-Za-z])[)\]]?[*_`\"']*\s*(?:(?:[.:)\]]|--?)[*_]*\s*(.*)|$)",
    re.DOTALL | re.IGNORECASE,
)
_ONE: Final = r"[*_(\[\"`]{0,4}\b[A-Z]\b[*_)\]\"`]{0,4}"
_FURTHER: Final = rf"(?:\s*(?:,|/|&|\bor\b|\band\b)\s*{_ONE})*"
_NAMED: Final = re.compile(
    rf"\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+(?:is:?\s+)?{_ONE}{_FURTHER}"
    r"|(?<!\w)[(\[][A-Z][)\]]"
    rf"|\b(?:choose|pick|select|go with|is|be|[Ii]t's):?\s+{_ONE}{_FURTHER}(?=\s*(?:[.,;:\n]|$))"
    r"|(?<![\w'])[*_(\[]{0,4}[A-Z][*_)\]]{0,4}(?=\s+is\s+(?:the\s+)?(?:correct|right|best|answer))"
)
_CAPITAL: Final = re.compile(r"(?<![A-Za-z'])[A-Z](?![A-Za-z])")
_MATHEMATICS: Final = re.compile(r"\$|\\[()\[\]]")
_TYPESET: Final = re.compile(r"\\(?:text|textbf|textit|mathbf|mathrm|boxed|fbox)\s*\{([^{}]*)\}")
_BRACES: Final = re.compile(r"\{([A-Za-z])\}")


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
    chosen = _choice(prediction, offered)
    return float(
        chosen is not None and chosen in {_chosen(_plain(reference), offered) for reference in references}
    )


def chosen_option(prediction: str, options: Mapping[str, str]) -> str | None:
    """Return the text of the option that a prediction chooses; `None` if that is not clear.

    >>> chosen_option("The answer is (B).", {"A": "0.9", "B": "1.2"})
    '1.2'
    """
    letter = _choice(without_reasoning(prediction), options)
    return None if letter is None else options.get(letter)


def _choice(prediction: str, offered: Mapping[str, str]) -> str | None:
    """Return the choice of a text: by its answer, by the whole of it, or by a letter in its first line."""
    plain = _plain(prediction)
    for text in (_plain(extract_answer(prediction)), plain):
        if (chosen := _chosen(text, offered)) is not None:
            return chosen
    label = _LABEL.fullmatch(plain.strip().partition("\n")[0])
    alone = label is not None and not label[2] and not _named(plain)
    return _letter(label[1], offered) if label and alone else None


def _letter(letter: str, offered: Mapping[str, str]) -> str | None:
    return letter.upper() if not offered or letter.upper() in offered else None


def _plain(text: str) -> str:
    """Remove typesetting: dollars, `\\text{…}`, braces around a letter."""
    return _BRACES.sub(r"\1", _TYPESET.sub(r"\1", _MATHEMATICS.sub("", text)))


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
            for other_letter, option in offered.items()
            if other_letter != letter and normalise_squad(option) == normalise_squad(rest)
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
    """Return the letters that a text names as its choice, with those that follow after `or` and `and`."""
    return {letter for match in _NAMED.finditer(text) for letter in _CAPITAL.findall(match[0])}


def _only_named(text: str, offered: Mapping[str, str]) -> str | None:
    """Return the one option whose text occurs; an option contained in another occurring one does not count."""
    named = [letter for letter, option in offered.items() if contains_answer(text, [option])]
    longest = [
        letter
        for letter in named
        if not any(contains_answer(offered[other], [offered[letter]]) for other in named if other != letter)
    ]
    return longest[0] if len(longest) == 1 else None
